/* wire.h: what the emulator sends and the load generator expects, byte for byte.
 *
 * A chunk has the size and the fields of one of SGLang's chat chunks (242 bytes). Its text says whose
 * it is, its number, and the CLOCK_MONOTONIC time in ns at which it was written; client and engine
 * run on one machine, so the difference to the client's clock is the one-way delay.
 */
#ifndef WIRE_H
#define WIRE_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define MODEL "tiny"
#define PLAN "@plan "        /* in a prompt: how to answer it, as `key=value` words */
#define CHUNK_ROOM 512       /* no chunk is longer */
#define REPLY_BYTES 1024     /* the answer to a request without a stream */
#define DONE "data: [DONE]\n\n"

#define CHUNK_HEAD "data: {\"id\":\"chatcmpl-"
#define CHUNK_CHOICE \
    "\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,\"model\":\"" MODEL \
    "\",\"choices\":[{\"index\":0,"
#define CHUNK_TEXT "\"delta\":{\"content\":\"S="
#define CHUNK_NUMBER " I="
#define CHUNK_TIME " T="
#define CHUNK_TAIL " lorem ipsum dolor\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n"
#define LAST_TAIL "\"delta\":{},\"logprobs\":null,\"finish_reason\":\"stop\"}]}\n\n"

static inline uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline char *put_text(char *at, const char *text, size_t length) {
    memcpy(at, text, length);
    return at + length;
}
#define PUT(at, literal) put_text(at, literal, sizeof(literal) - 1)

static inline char *put_hex(char *at, uint64_t value, int digits) {
    for (int i = digits - 1; i >= 0; i--, value >>= 4) at[i] = "0123456789abcdef"[value & 15];
    return at + digits;
}

/* One event of a stream; its length. printf would cost the emulator a fifth of its speed. */
static inline size_t write_chunk(char *into, uint32_t stream, uint32_t number, uint64_t at_ns) {
    char *end = PUT(into, CHUNK_HEAD);
    end = put_hex(end, stream, 8);
    end = PUT(end, CHUNK_CHOICE);
    end = PUT(end, CHUNK_TEXT);
    end = put_hex(end, stream, 8);
    end = PUT(end, CHUNK_NUMBER);
    end = put_hex(end, number, 8);
    end = PUT(end, CHUNK_TIME);
    end = put_hex(end, at_ns, 16);
    end = PUT(end, CHUNK_TAIL);
    return (size_t)(end - into);
}

/* The event that says why it ended; its length. */
static inline size_t write_last(char *into, uint32_t stream) {
    char *end = PUT(into, CHUNK_HEAD);
    end = put_hex(end, stream, 8);
    end = PUT(end, CHUNK_CHOICE);
    end = PUT(end, LAST_TAIL);
    return (size_t)(end - into);
}

/* The whole answer to a request without a stream, REPLY_BYTES long. */
static inline const char *reply_body(void) {
    static char body[REPLY_BYTES + 1];
    static const char tail[] =
        "\"},\"logprobs\":null,\"finish_reason\":\"stop\"}],"
        "\"usage\":{\"prompt_tokens\":200,\"completion_tokens\":150,\"total_tokens\":350}}";
    if (!body[0]) {
        size_t n = (size_t)snprintf(
            body, sizeof body,
            "{\"id\":\"chatcmpl-00000000\",\"object\":\"chat.completion\",\"created\":1700000000,"
            "\"model\":\"" MODEL "\",\"choices\":[{\"index\":0,"
            "\"message\":{\"role\":\"assistant\",\"content\":\"");
        for (; n < REPLY_BYTES - (sizeof tail - 1); n++) body[n] = "the quick brown fox "[n % 20];
        memcpy(body + n, tail, sizeof tail);
    }
    return body;
}

#endif
