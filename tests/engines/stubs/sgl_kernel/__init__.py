"""Stand-in for the CPU build of `sgl_kernel`, in plain PyTorch.

SGLang 0.5.23 runs on a CPU, EAGLE-3 included, but for a dozen functions of a compiled module that
comes with a source build only. They are here as far as a dense Llama and a chain of drafts
(top-k 1) need them, written to their callers, slow, and of no use beyond a tiny model.

What is missing is missing on purpose: SGLang looks for `convert_weight_packed` to learn whether it
may pack weights for AMX, and takes its PyTorch paths where that is not there. Trees of drafts,
sliding windows, cross attention, sinks and capped logits are refused.

Its LoRA asks for pinned memory, which a machine without an accelerator has not: any memory will do
there.

The names of parameters are SGLang's; where it passes them by keyword, they have to be.
"""

import ctypes
import functools
from typing import NoReturn

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

__version__ = "0.4.10+stub"  # the release that SGLang 0.5.23 asks for


def _refuse(what: str) -> NoReturn:
    raise NotImplementedError(f"the stand-in for sgl_kernel has no {what}")


def assign_req_to_token_pool_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start_offset: Tensor,
    end_offset: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
) -> None:
    """Write the next slots of *out_cache_loc* into each request's row, from start to end."""
    taken = 0
    for row, start, end in _rows(req_pool_indices, start_offset, end_offset):
        slots = out_cache_loc[taken : taken + end - start]
        req_to_token[row, start:end] = slots.to(req_to_token.dtype)
        taken += end - start


def assign_extend_cache_locs_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start_offset: Tensor,
    end_offset: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
) -> None:
    """Read each request's slots from start to end, one request after the other."""
    taken = 0
    for row, start, end in _rows(req_pool_indices, start_offset, end_offset):
        slots = req_to_token[row, start:end]
        out_cache_loc[taken : taken + end - start] = slots.to(out_cache_loc.dtype)
        taken += end - start


def assign_draft_cache_locs_contiguous_cpu(  # noqa: PLR0913, PLR0917 - SGLang's signature
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    seq_lens: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
    topk: int,
    num_cols: int,
) -> None:
    """Read the *num_cols* slots after each request's last token: the drafts' own."""
    if topk != 1:
        _refuse("trees of drafts")
    assign_extend_cache_locs_cpu(
        req_pool_indices, req_to_token, seq_lens, seq_lens + num_cols, out_cache_loc, pool_len
    )


def build_draft_decode_metadata_cpu(
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    topk: int,
    num_steps: int,
    pool_len: int,
) -> Tensor:
    """Return a row of slots for each draft; in a chain it is the request's own row."""
    if topk != 1:
        _refuse("trees of drafts")
    return req_to_token[req_pool_indices].contiguous()


def copy_all_layer_kv_cache_cpu(
    data_ptrs: Tensor, strides: Tensor, tgt_loc: Tensor, src_loc: Tensor
) -> None:
    """Copy cache rows within each layer's buffers, which come as addresses and row lengths.

    SGLang tries it once as it starts; a chain never moves a row after that.
    """
    sources, targets = src_loc.tolist(), tgt_loc.tolist()
    for address, length in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        rows = [ctypes.string_at(address + source * length, length) for source in sources]
        for target, row in zip(targets, rows, strict=True):
            ctypes.memmove(address + target * length, row, length)


def _rows(*columns: Tensor) -> list[tuple[int, ...]]:
    return list(zip(*(column.tolist() for column in columns), strict=True))


def build_tree_kernel_efficient_cpu(  # noqa: PLR0913, PLR0917 - SGLang's signature
    parent_list: Tensor,
    selected_index: Tensor,
    verified_seq_len: Tensor,
    tree_mask: Tensor,
    positions: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    topk: int,
    depth: int,
    draft_token_num: int,
    tree_mask_mode: int,
) -> None:
    """Describe a chain: each draft has one successor, and no sibling.

    The mask stays as it came: SGLang's attention does not read it for a chain, which is causal.
    """
    if topk != 1:
        _refuse("trees of drafts")
    requests = verified_seq_len.numel()
    steps = torch.arange(draft_token_num)
    retrive_index.copy_(torch.arange(requests * draft_token_num).view(requests, -1))
    retrive_next_token.copy_((steps + 1).expand(requests, -1))
    retrive_next_token[:, -1] = -1  # none
    retrive_next_sibling.fill_(-1)
    positions.copy_((verified_seq_len.view(-1, 1) + steps).flatten())


def verify_tree_greedy_cpu(  # noqa: PLR0913, PLR0917 - SGLang's signature
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    target_predict: Tensor,
) -> None:
    """Accept each chain's drafts up to the first that the target would not have written.

    *candidates* begins with the last sure token, so draft i + 1 is judged by the target's word
    on i. The target's word after the last accepted draft comes as a bonus.
    """
    right = candidates[:, 1:] == target_predict[:, :-1]
    accepted = right.cumprod(dim=1).sum(dim=1)
    kept = torch.arange(candidates.shape[1]) <= accepted.unsqueeze(1)
    accept_token_num.copy_(accepted)
    accept_index.copy_(torch.where(kept, retrive_index, -1))
    predicts[retrive_index[kept]] = target_predict[kept].to(predicts.dtype)


def fill_bonus_tokens_cpu(
    accept_tokens: Tensor, accept_lens: Tensor, bonus_tokens: Tensor, accept_stride: int
) -> None:
    """Read the last accepted token of each request: its length counts the bonus."""
    starts = torch.arange(accept_lens.numel()) * accept_stride
    bonus_tokens.copy_(accept_tokens.flatten()[starts + accept_lens - 1])


def fill_accept_out_cache_loc_cpu(*_: object) -> NoReturn:
    """Only trees move what was accepted; SGLang imports the name all the same."""
    _refuse("trees of drafts")


def rotate_input_ids_cpu(*_: object) -> NoReturn:
    """Only drafts of several layers need it; SGLang imports the name all the same."""
    _refuse("drafts of several layers")


def decode_attention_cpu(  # noqa: PLR0913, PLR0917 - SGLang's signature
    q: Tensor,
    k_buffer: Tensor,
    v_buffer: Tensor,
    k_scale: float,
    v_scale: float,
    o: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    loc: Tensor,
    attn_logits: Tensor,
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    sm_scale: float,
    logit_cap: float,
    is_cross_attn: bool = False,  # noqa: FBT001, FBT002 - SGLang's signature
    sliding_window_size: int = 0,
    encoder_lens: Tensor | None = None,
    sinks: Tensor | None = None,
) -> None:
    """Store the new key and value of each request, then attend with its one new token."""
    _plain_attention_only(logit_cap, is_cross_attn, sliding_window_size, sinks)
    if k is not None and v is not None:
        k_buffer[loc] = k.view(-1, *k_buffer.shape[1:]).to(k_buffer.dtype)
        v_buffer[loc] = v.view(-1, *v_buffer.shape[1:]).to(v_buffer.dtype)
    for i, (row, length) in enumerate(_rows(req_pool_indices, seq_lens)):
        at = req_to_token[row, :length].long()
        o[i : i + 1] = _attend(q[i : i + 1], k_buffer[at], v_buffer[at], sm_scale, None)


def extend_attention_cpu(  # noqa: PLR0913, PLR0917 - SGLang's signature
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    k_buffer: Tensor,
    v_buffer: Tensor,
    k_scale: float,
    v_scale: float,
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    extend_seq_lens: Tensor,
    extend_start_loc: Tensor,
    max_len_extend: int,
    sm_scale: float,
    logit_cap: float,
    is_cross_attn: bool = False,  # noqa: FBT001, FBT002 - SGLang's signature
    sliding_window_size: int = 0,
    encoder_lens: Tensor | None = None,
    sinks: Tensor | None = None,
    tree_mask: Tensor | None = None,
    is_causal: bool = True,  # noqa: FBT001, FBT002 - SGLang's signature
) -> None:
    """Attend with several new tokens of each request; their keys are in the cache already."""
    _plain_attention_only(logit_cap, is_cross_attn, sliding_window_size, sinks)
    if tree_mask is not None or not is_causal:
        _refuse("mask but the causal one")
    for row, length, new, start in _rows(
        req_pool_indices, seq_lens, extend_seq_lens, extend_start_loc
    ):
        at = req_to_token[row, :length].long()
        visible = torch.ones((new, length), dtype=torch.bool).tril(length - new)
        mine = slice(start, start + new)
        o[mine] = _attend(q[mine], k_buffer[at], v_buffer[at], sm_scale, visible)


def _plain_attention_only(
    logit_cap: float,
    is_cross_attn: bool,  # noqa: FBT001 - handed on as it came
    sliding_window_size: int,
    sinks: Tensor | None,
) -> None:
    if logit_cap or is_cross_attn or sliding_window_size or sinks is not None:
        _refuse("attention but the plain one")


def _attend(q: Tensor, k: Tensor, v: Tensor, scale: float, visible: Tensor | None) -> Tensor:
    """Return what *q* (tokens x heads x width) reads from *k* and *v*, in their own type."""
    heads_first = (side.transpose(0, 1) for side in (q, k, v))
    out = scaled_dot_product_attention(*heads_first, attn_mask=visible, scale=scale)
    return out.transpose(0, 1)


torch.ops.sgl_kernel.decode_attention_cpu = decode_attention_cpu
torch.ops.sgl_kernel.extend_attention_cpu = extend_attention_cpu


def _without_pins(name: str) -> None:
    make = getattr(torch, name)

    @functools.wraps(make)
    def made(*shape: object, pin_memory: bool = False, **kinds: object) -> Tensor:
        made: Tensor = make(*shape, **kinds)
        return made

    setattr(torch, name, made)


for _name in ("arange", "empty", "tensor", "zeros"):
    _without_pins(_name)
Tensor.pin_memory = lambda self: self
