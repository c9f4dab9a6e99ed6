"""Configuration: TOML file, environment and flags to one frozen Config, or all that is wrong.

    forms       how a value is written: in the environment, in a message, in the file
    addresses   hosts and URLs
    values      what a value may be: the types that sections are made of
    model       the sections: every key with its default and its checks, and nowhere else
    settings    the same as a list: what the environment, the docs and the messages go by
    findings    pydantic's errors in our words; never a secret in them
    sources     file, environment and flags put together

Read by app and cli only; everything else is handed the values it needs.
"""

from proxy.config.addresses import Url
from proxy.config.model import Config, Upstream
from proxy.config.settings import Setting, describe
from proxy.config.sources import load

__all__ = ["Config", "Setting", "Upstream", "Url", "describe", "load"]
