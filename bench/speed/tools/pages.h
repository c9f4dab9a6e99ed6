/* pages.h: what the emulated servers say of themselves, as SGLang 0.5.23 does.
 *
 * The fields that specswitch's prober and the routers' discovery read. One server says that it
 * speculates, the other that it does not; neither is ever short of room.
 */
#ifndef PAGES_H
#define PAGES_H

#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include "wire.h"

#define PAGE_ROOM (128 * 1024)
#define METRICS_BYTES 87000  /* of SGLang's own page: whoever reads it must pay for all of it */

struct server {
    int speculates;
    int running;             /* streams that have not ended */
    uint64_t streams;        /* that have ended */
    uint64_t replies;        /* requests without a stream */
    uint64_t requests;       /* both kinds, begun; probes are none */
    uint64_t connections;
    uint64_t chunks;
};

/* SGLang's own default with speculation is 48; without it memory is the bound. */
static inline int most_running(const struct server *of) { return of->speculates ? 48 : 4096; }

static inline int say_models(char *into) {
    return sprintf(into,
                   "{\"object\":\"list\",\"data\":[{\"id\":\"" MODEL "\",\"object\":\"model\","
                   "\"created\":1700000000,\"owned_by\":\"sglang\",\"root\":\"" MODEL "\","
                   "\"parent\":null,\"max_model_len\":32768}]}");
}

static inline int say_info(char *into, const struct server *of) {
    int most = most_running(of);
    const char *speculation =
        of->speculates ? "\"speculative_algorithm\":\"EAGLE3\",\"speculative_num_steps\":3,"
                         "\"speculative_eagle_topk\":1,\"speculative_num_draft_tokens\":4,"
                       : "\"speculative_algorithm\":null,";
    return sprintf(into,
                   "{\"status\":\"ready\",\"version\":\"0.5.23\",\"model_path\":\"" MODEL "\","
                   "\"tokenizer_path\":\"" MODEL "\",\"served_model_name\":\"" MODEL "\","
                   "\"is_generation\":true,\"revision\":null,\"dtype\":\"bfloat16\","
                   "\"quantization\":null,\"context_length\":32768,\"tp_size\":1,\"dp_size\":1,%s"
                   "\"disable_cuda_graph\":false,\"max_running_requests\":%d,"
                   "\"cuda_graph_config\":{\"decode\":{\"backend\":\"full\",\"max_bs\":%d}},"
                   "\"max_total_num_tokens\":4000000,"
                   "\"internal_states\":[{\"effective_max_running_requests_per_dp\":%d}]}",
                   speculation, most, most, most);
}

/* Verify rounds of the speculative server yield 2.5 tokens each: nothing to leave speculation for. */
static inline double rounds(const struct server *of) {
    return of->speculates ? (double)of->chunks / 2.5 : (double)of->chunks;
}

static inline int say_loads(char *into, const struct server *of) {
    struct timespec t;
    struct tm utc;
    char day[32];
    clock_gettime(CLOCK_REALTIME, &t);
    gmtime_r(&t.tv_sec, &utc);
    strftime(day, sizeof day, "%Y-%m-%dT%H:%M:%S", &utc);
    double steps = rounds(of);
    return sprintf(into,
                   "{\"timestamp\":\"%s.%06ld+00:00\",\"version\":\"0.5.23\",\"loads\":["
                   "{\"timestamp\":%ld.%06ld,\"dp_rank\":0,\"num_running_reqs\":%d,"
                   "\"num_waiting_reqs\":0,\"token_usage\":0.1,\"max_running_requests\":%d,"
                   "\"decode_moments\":[%.1f,%.1f,%.1f,%.1f,%.1f,%.1f]}]}",
                   day, t.tv_nsec / 1000, (long)t.tv_sec, t.tv_nsec / 1000, of->running,
                   most_running(of), steps, steps, steps, steps, steps, (double)of->chunks);
}

static inline int say_metrics(char *into, const struct server *of) {
    static const char labels[] = "engine_type=\"unified\",model_name=\"" MODEL "\"";
    int n = sprintf(into,
                    "# TYPE sglang:generation_tokens_total counter\n"
                    "sglang:generation_tokens_total{%s} %.1f\n"
                    "# TYPE sglang:num_requests_total counter\n"
                    "sglang:num_requests_total{%s} %.1f\n",
                    labels, (double)(of->chunks + 150 * of->replies), labels,
                    (double)(of->streams + of->replies));
    if (of->speculates)
        n += sprintf(into + n,
                     "# TYPE sglang:spec_verify_calls_total counter\n"
                     "sglang:spec_verify_calls_total{%s} %.1f\n",
                     labels, rounds(of));
    n += sprintf(into + n, "# TYPE sglang:e2e_request_latency_seconds histogram\n");
    for (int i = 1; n < METRICS_BYTES; i++)
        n += sprintf(into + n, "sglang:e2e_request_latency_seconds_bucket{%s,le=\"%d.0\"} %.1f\n",
                     labels, i, (double)of->streams);
    return n;
}

/* The answer to GET `path`; its length. Routers look under several names for who a server is, so
 * every other path says that. `into` has PAGE_ROOM bytes. */
static inline int say_page(char *into, const char *path, const struct server *of) {
    if (!strncmp(path, "/v1/models", 10)) return say_models(into);
    if (!strncmp(path, "/v1/loads", 9)) return say_loads(into, of);
    if (!strncmp(path, "/metrics", 8)) return say_metrics(into, of);
    return say_info(into, of);
}

#endif
