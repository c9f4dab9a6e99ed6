/* load.c: clients of an OpenAI-compatible proxy on loopback, in one thread.
 *
 *   gcc -O2 -o load load.c
 *   ./load streams  PORT clients=64 chunks=200 interval_us=20000 ramp_ms=500 limit_s=15
 *   ./load requests PORT clients=32 body=1024 seconds=2
 *   ./load stall    PORT clients=1 seconds=30
 *
 * streams   Each client sends one streamed request and reads it to its end, or leaves: after
 *           `leave_after` chunks, or with leave_after=0 `leave_ms` after sending, before the head.
 * requests  Each client asks again as soon as it has its answer, for so many seconds. On a new
 *           connection each time with renew=1, where the other side is asked to close, and renew=2,
 *           where the client closes with a reset. get=/path: GET that instead, and take any 200.
 * stall     Each client asks for an endless stream and reads nothing.
 *
 * LOAD_KEY in the environment is the client's key. What is found goes to standard output as one JSON
 * object in the last line. Before it, each in a line of its own: "steady" once all streams have
 * begun, "ending" when the first of them ends, so that whoever reads along can take the CPU time
 * between the two.
 *
 * Every byte of an answer is compared with what the emulator sends. A chunk is `exact` if it is the
 * same, `altered` if only its text is right and in its place, else `wrong`.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdlib.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>
#include "wire.h"

#define EVENTS 512
#define HEAD_ROOM 8192
#define READ_ROOM (128 * 1024)
#define GRACE_NS 10000000000u  /* for the last answers of `requests` */

enum phase { IDLE, SENDING, AWAITING, READING, LEAVING, ENDED, FAILED };
enum framing { BY_LENGTH, BY_CLOSE, CHUNKED };
enum part { SIZE_LINE, DATA, DATA_END, TRAILER };

struct client {
    int fd, status, closes, done;
    enum phase phase;
    enum framing framing;
    enum part part;
    char *request;             /* its own where it holds its id, else everybody's */
    size_t sent;
    char head[HEAD_ROOM], line[32];
    size_t head_length, line_length;
    uint64_t remaining;        /* of the body or the chunk of its framing */
    char *kept;                /* an event, or the body, that has not come whole */
    size_t kept_length, kept_room;
    uint32_t id, next;
    uint64_t sent_at, left_at, ended_at, first_at;
};

struct series {                /* microseconds or milliseconds */
    float *values;
    size_t length, room;
};

static long clients_count = 1, chunks = 200, interval_us = 20000, first_ms, lockstep, ramp_ms = 500,
            limit_s = 15, leave_after = -1, leave_ms = 300, body_bytes = 1024, seconds = 2, renew;
static const char *get_path;
static struct { const char *name; long *value; } options[] = {
    {"clients", &clients_count}, {"chunks", &chunks}, {"interval_us", &interval_us},
    {"first_ms", &first_ms}, {"lockstep", &lockstep}, {"ramp_ms", &ramp_ms}, {"limit_s", &limit_s},
    {"leave_after", &leave_after}, {"leave_ms", &leave_ms}, {"body", &body_bytes},
    {"seconds", &seconds}, {"renew", &renew}};

static int poller, port, streaming, stalling;
static struct client *clients;
static char *request;
static size_t request_length, id_offset;
static struct series delays, firsts, durations;
static uint64_t exact, altered, wrong, refused, errors, connects, began, ends_at;
static uint64_t steady_at, steady_chunks, ending_at, ending_chunks;
static long begun, in_time;

static void fail(const char *what) {
    fprintf(stderr, "load: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void note(struct series *to, double value) {
    if (to->length == to->room) {
        to->room = to->room ? to->room * 2 : 1 << 16;
        to->values = realloc(to->values, to->room * sizeof *to->values);
        if (!to->values) fail("memory");
    }
    to->values[to->length++] = (float)value;
}

static void tell(const char *word) {
    puts(word);
    fflush(stdout);
}

/* --- what is sent ------------------------------------------------------------------------- */

static size_t write_prompt(char *into) {
    char *end = into + sprintf(into, "{\"model\":\"" MODEL "\",%s\"max_tokens\":%ld,\"messages\":"
                                     "[{\"role\":\"user\",\"content\":\"",
                               streaming ? "\"stream\":true," : "", chunks);
    if (streaming) {
        end += sprintf(end, PLAN "id=");
        id_offset = (size_t)(end - into);
        end += sprintf(end, "00000000 chunks=%ld interval_us=%ld first_ms=%ld lockstep=%ld . ",
                       chunks, interval_us, first_ms, lockstep);
    }
    for (size_t i = 0; end - into < body_bytes - 4; i++) *end++ = "please tell me more "[i % 20];
    end = PUT(end, "\"}]}");
    return (size_t)(end - into);
}

/* As a vision client sends it: large bodies are one image in base64. */
static size_t write_image(char *into) {
    static const char letters[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    char *end = into + sprintf(into, "{\"model\":\"" MODEL "\",\"max_tokens\":%ld,\"messages\":"
                                     "[{\"role\":\"user\",\"content\":[{\"type\":\"text\","
                                     "\"text\":\"what is this?\"},{\"type\":\"image_url\","
                                     "\"image_url\":{\"url\":\"data:image/png;base64,", chunks);
    for (size_t i = 0; end - into < body_bytes - 8; i++) *end++ = letters[i * 7 % 64];
    end = PUT(end, "\"}}]}]}");
    return (size_t)(end - into);
}

static void write_request(void) {
    const char *key = getenv("LOAD_KEY");
    char common[512];
    snprintf(common, sizeof common, "Host: 127.0.0.1:%d\r\nAuthorization: Bearer %s\r\n%s", port,
             key ? key : "none", renew == 1 ? "Connection: close\r\n" : "");
    request = malloc((size_t)body_bytes + 4096);
    char *body = malloc((size_t)body_bytes + 4096);
    if (!request || !body) fail("memory");
    if (get_path) {
        request_length = (size_t)sprintf(request, "GET %s HTTP/1.1\r\n%s\r\n", get_path, common);
    } else {
        size_t length = body_bytes > 100000 ? write_image(body) : write_prompt(body);
        size_t head = (size_t)sprintf(request,
                                      "POST /v1/chat/completions HTTP/1.1\r\n%s"
                                      "Content-Type: application/json\r\nAccept: */*\r\n"
                                      "Content-Length: %zu\r\n\r\n", common, length);
        memcpy(request + head, body, length);
        request_length = head + length;
        id_offset += head;
    }
    free(body);
}

/* --- clients ------------------------------------------------------------------------------ */

static void hang_up(struct client *c) {
    if (c->fd >= 0) close(c->fd);
    c->fd = -1;
}

static void finish(struct client *c, int well) {
    c->ended_at = now_ns();
    c->phase = well ? ENDED : FAILED;
    if (!well) errors++;
    hang_up(c);
}

static void leave(struct client *c) {
    c->left_at = now_ns();
    finish(c, 1);
}

static void watch(struct client *c, int how, uint32_t events) {
    struct epoll_event e = {.events = events, .data.ptr = c};
    epoll_ctl(poller, how, c->fd, &e);
}

static void send_more(struct client *c) {
    while (c->sent < request_length) {
        ssize_t sent = send(c->fd, c->request + c->sent, request_length - c->sent, MSG_NOSIGNAL);
        if (sent < 0) {
            if (errno != EAGAIN && errno != ENOTCONN) finish(c, 0);
            return;
        }
        c->sent += (size_t)sent;
    }
    c->phase = AWAITING;
    watch(c, EPOLL_CTL_MOD, stalling ? 0 : EPOLLIN);
}

static void dial(struct client *c) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int one = 1;
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (c->fd < 0) fail("a client's socket");
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (renew == 2) {  /* nor has one after a reset */
        struct linger at_once = {1, 0};
        setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    }
    connects++;
    if (connect(c->fd, (void *)&at, sizeof at) && errno != EINPROGRESS) {
        finish(c, 0);
        return;
    }
    watch(c, EPOLL_CTL_ADD, EPOLLIN | EPOLLOUT);
}

static void ask(struct client *c) {
    c->head_length = c->line_length = c->kept_length = c->sent = 0;
    c->done = c->closes = c->status = 0;
    c->part = SIZE_LINE;
    c->phase = SENDING;
    c->sent_at = now_ns();
    if (c->fd < 0) {
        dial(c);
        return;
    }
    watch(c, EPOLL_CTL_MOD, EPOLLIN | EPOLLOUT);
    send_more(c);
}

static void begin(struct client *c, uint32_t id) {
    c->fd = -1;
    c->id = id;
    c->request = request;
    if (streaming) {
        c->request = malloc(request_length);
        if (!c->request) fail("memory");
        memcpy(c->request, request, request_length);
        put_hex(c->request + id_offset, id, 8);
    }
    ask(c);
}

/* --- answers ------------------------------------------------------------------------------ */

static void complain(const struct client *c) {
    if (refused++ < 2)
        fprintf(stderr, "status %d: %.*s\n", c->status, (int)(c->kept_length < 300 ? c->kept_length : 300),
                c->kept ? c->kept : "");
}

static void end_stream(struct client *c) {
    int well = c->status == 200 && c->done && c->next == (uint32_t)chunks;
    if (c->status != 200) complain(c);
    finish(c, well);
    if (!well) return;
    double nominal = (double)first_ms + (double)(chunks + (lockstep ? 1 : 0)) * (double)interval_us / 1e3;
    double took = (double)(c->ended_at - c->sent_at) / 1e6;
    note(&durations, took);
    if (!interval_us || took <= nominal * 1.02 + 50) in_time++;
    if (!ending_at && begun == clients_count) {
        ending_at = c->ended_at;
        ending_chunks = delays.length;
        tell("ending");
    }
}

static void end_request(struct client *c) {
    uint64_t now = now_ns();
    note(&delays, (double)(now - c->sent_at) / 1e3);
    if (c->status != 200) complain(c);
    else if (get_path || (c->kept_length == REPLY_BYTES && !memcmp(c->kept, reply_body(), REPLY_BYTES)))
        exact++;
    else altered++;
    c->ended_at = now;
    if (renew == 1) c->phase = LEAVING; /* the other side closes, so no port of ours has to rest */
    else if (now < ends_at) {
        if (c->closes || renew) hang_up(c);
        ask(c);
    } else finish(c, 1);
}

static void end_answer(struct client *c) {
    if (streaming) end_stream(c);
    else end_request(c);
}

static int hex(const char *text, int digits, uint64_t *value) {
    *value = 0;
    for (int i = 0; i < digits; i++) {
        const char *at = memchr("0123456789abcdef", text[i], 16);
        if (!at) return 0;
        *value = *value << 4 | (uint64_t)(at - "0123456789abcdef");
    }
    return 1;
}

/* One event with its blank line. */
static void on_event(struct client *c, const char *event, size_t length, uint64_t now) {
    char expected[CHUNK_ROOM];
    uint64_t id, number, written;
    if (length == sizeof DONE - 1 && !memcmp(event, DONE, length)) {
        c->done = 1;
        return;
    }
    const char *text = memmem(event, length, "S=", 2);
    /* S=8 I=8 T=16 digits, with a blank before each name but the first */
    if (!text || event + length - text < 42 || !hex(text + 2, 8, &id) ||
        !hex(text + 13, 8, &number) || !hex(text + 24, 16, &written)) {
        size_t n = write_last(expected, c->id);
        if (n == length && !memcmp(event, expected, n)) exact++;
        else altered++;            /* a comment, a role, another way to say that it has ended */
        return;
    }
    if (!c->next) {
        note(&firsts, (double)(now - c->sent_at) / 1e3);
        if (++begun == clients_count) {
            steady_at = now;
            steady_chunks = delays.length;
            tell("steady");
        }
    }
    if (id != c->id || number != c->next) wrong++;
    else {
        size_t n = write_chunk(expected, c->id, c->next, written);
        if (n == length && !memcmp(event, expected, n)) exact++;
        else altered++;
    }
    c->next = (uint32_t)number + 1;
    note(&delays, (double)(int64_t)(now - written) / 1e3);
}

static void keep(struct client *c, const char *data, size_t length, uint64_t now) {
    if (c->kept_length + length > c->kept_room) {
        c->kept_room = (c->kept_length + length) * 2;
        c->kept = realloc(c->kept, c->kept_room);
        if (!c->kept) fail("memory");
    }
    memcpy(c->kept + c->kept_length, data, length);
    c->kept_length += length;
    if (!streaming || c->status != 200) return;
    size_t at = 0;
    char *end;
    while ((end = memmem(c->kept + at, c->kept_length - at, "\n\n", 2))) {
        size_t next = (size_t)(end - c->kept) + 2;
        on_event(c, c->kept + at, next - at, now);
        at = next;
    }
    memmove(c->kept, c->kept + at, c->kept_length - at);
    c->kept_length -= at;
}

/* A line of the framing; whether the answer ended with it. */
static int on_line(struct client *c) {
    c->line[c->line_length] = 0;
    size_t length = strcspn(c->line, "\r");
    c->line_length = 0;
    if (c->part == TRAILER) return !length;
    if (c->part == DATA_END) {
        c->part = SIZE_LINE;
        return 0;
    }
    c->remaining = strtoull(c->line, NULL, 16);
    c->part = c->remaining ? DATA : TRAILER;
    return 0;
}

static void on_chunked(struct client *c, const char *data, size_t length, uint64_t now) {
    while (length) {
        if (c->part == DATA) {
            size_t n = length < c->remaining ? length : (size_t)c->remaining;
            keep(c, data, n, now);
            data += n;
            length -= n;
            c->remaining -= n;
            if (!c->remaining) c->part = DATA_END;
            continue;
        }
        length--;
        char letter = *data++;
        if (letter != '\n') {
            if (c->line_length < sizeof c->line - 1) c->line[c->line_length++] = letter;
        } else if (on_line(c)) {
            end_answer(c);
            return;
        }
    }
}

static void on_body(struct client *c, const char *data, size_t length, uint64_t now) {
    if (c->framing == CHUNKED) {
        on_chunked(c, data, length, now);
        return;
    }
    keep(c, data, length, now);
    if (c->framing == BY_CLOSE) return;
    c->remaining -= length < c->remaining ? length : c->remaining;
    if (!c->remaining) end_answer(c);
}

static const char *header(const char *head, const char *name) {
    size_t n = strlen(name);
    for (const char *line = strstr(head, "\r\n"); line; line = strstr(line, "\r\n")) {
        line += 2;
        if (!strncasecmp(line, name, n) && line[n] == ':') return line + n + 1 + strspn(line + n + 1, " ");
    }
    return NULL;
}

/* Takes what belongs to the head; how much of `length` that was. */
static size_t on_head(struct client *c, const char *data, size_t length) {
    size_t before = c->head_length, room = HEAD_ROOM - 1 - before;
    size_t n = length < room ? length : room;
    memcpy(c->head + before, data, n);
    c->head[before + n] = 0;
    char *end = strstr(c->head, "\r\n\r\n");
    if (!end) {
        c->head_length += n;
        return n;
    }
    size_t whole = (size_t)(end - c->head) + 4;
    *end = 0;
    c->status = atoi(c->head + sizeof "HTTP/1.1");
    const char *value = header(c->head, "content-length");
    c->framing = value ? BY_LENGTH : BY_CLOSE;
    c->remaining = value ? strtoull(value, NULL, 10) : 0;
    value = header(c->head, "transfer-encoding");
    if (value && !strncasecmp(value, "chunked", 7)) c->framing = CHUNKED;
    value = header(c->head, "connection");
    c->closes = value && !strncasecmp(value, "close", 5);
    c->phase = READING;
    return whole - before;
}

static void on_close(struct client *c) {
    if (c->phase == LEAVING) {
        hang_up(c);
        if (c->ended_at < ends_at) ask(c);
        else finish(c, 1);
    } else if (c->phase == READING && c->framing == BY_CLOSE) {
        c->closes = 1;
        end_answer(c);
    } else finish(c, 0);
}

static int reads(const struct client *c) {
    return c->fd >= 0 && c->phase >= SENDING && c->phase <= LEAVING;
}

static void on_readable(struct client *c) {
    static char data[READ_ROOM];
    int fd = c->fd;
    while (reads(c) && c->fd == fd) {
        ssize_t got = recv(fd, data, sizeof data, 0);
        if (got < 0) {
            if (errno != EAGAIN) on_close(c);
            return;
        }
        if (got == 0) {
            on_close(c);
            return;
        }
        uint64_t now = now_ns();
        size_t at = 0, length = (size_t)got;
        if (c->phase < READING) {
            at = on_head(c, data, length);
            if (c->phase == READING && c->framing == BY_LENGTH && !c->remaining) {
                end_answer(c);
                return;
            }
        }
        if (at < length && c->phase == READING) on_body(c, data + at, length - at, now);
        if (leave_after > 0 && c->phase == READING && c->next >= (uint32_t)leave_after) {
            leave(c);
            return;
        }
        if (length < sizeof data) return;
    }
}

/* --- the run ------------------------------------------------------------------------------ */

static void read_option(const char *word) {
    if (!strncmp(word, "get=", 4)) {
        get_path = word + 4;
        return;
    }
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        size_t n = strlen(options[i].name);
        if (!strncmp(word, options[i].name, n) && word[n] == '=') {
            *options[i].value = atol(word + n + 1);
            return;
        }
    }
    fprintf(stderr, "load: unknown option %s\n", word);
    exit(2);
}

static void need_descriptors(void) {
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    if ((uint64_t)clients_count + 16 > files.rlim_cur) {
        fprintf(stderr, "load: %ld clients need more than the %lu descriptors there may be (ulimit -Hn)\n",
                clients_count, (unsigned long)files.rlim_cur);
        exit(1);
    }
}

static int live(long started) {
    for (long i = 0; i < started; i++)
        if (clients[i].phase < ENDED) return 1;
    return 0;
}

/* Those that leave before the head. */
static void leave_waiting(long started, uint64_t now) {
    for (long i = 0; i < started; i++) {
        struct client *c = &clients[i];
        if (c->phase >= SENDING && c->phase <= READING && now > c->sent_at + (uint64_t)leave_ms * 1000000u)
            leave(c);
    }
}

static void run(void) {
    struct epoll_event events[EVENTS];
    long started = 0;
    began = now_ns();
    ends_at = began + (uint64_t)(streaming && !stalling ? limit_s : seconds) * 1000000000u;
    uint64_t hard_end = streaming ? ends_at : ends_at + GRACE_NS;
    uint64_t ramp_ns = (uint64_t)ramp_ms * 1000000u;
    for (;;) {
        uint64_t now = now_ns();
        while (started < clients_count && now - began >= (uint64_t)started * ramp_ns / (uint64_t)clients_count) {
            begin(&clients[started], (uint32_t)started);
            started++;
        }
        if ((started == clients_count && !live(started)) || now > hard_end) return;
        if (leave_after == 0) leave_waiting(started, now);
        int soon = started < clients_count || leave_after == 0;
        int count = epoll_wait(poller, events, EVENTS, soon ? 1 : 100);
        for (int i = 0; i < count; i++) {
            struct client *c = events[i].data.ptr;
            if (c->fd >= 0 && events[i].events & EPOLLOUT && c->phase == SENDING) send_more(c);
            if (reads(c) && events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) {
                if (stalling) finish(c, 0);
                else on_readable(c);
            }
        }
    }
}

/* --- what was found ----------------------------------------------------------------------- */

static int by_value(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* null where there is nothing to take it of */
static void say_percentile(const char *name, struct series *of, double share) {
    if (!of->length) printf(",\"%s\":null", name);
    else printf(",\"%s\":%.1f", name, (double)of->values[(size_t)(share * (double)(of->length - 1) + 0.5)]);
}

static void say_series(const char *prefix, struct series *of) {
    static const struct { const char *name; double share; } points[] = {
        {"p50", .5}, {"p90", .9}, {"p99", .99}, {"p999", .999}, {"max", 1}};
    char name[32];
    if (of->length) qsort(of->values, of->length, sizeof *of->values, by_value);
    for (size_t i = 0; i < sizeof points / sizeof *points; i++) {
        snprintf(name, sizeof name, "%s_%s", prefix, points[i].name);
        say_percentile(name, of, points[i].share);
    }
}

static void report(void) {
    struct rusage used;
    double took = (double)(now_ns() - began) / 1e9;
    long done = 0, unfinished = 0;
    uint64_t steady = ending_at && steady_at ? ending_chunks - steady_chunks : 0;
    for (long i = 0; i < clients_count; i++) {
        done += clients[i].phase == ENDED;
        unfinished += clients[i].phase < ENDED;
    }
    getrusage(RUSAGE_SELF, &used);
    printf("{\"seconds\":%.4f,\"clients\":%ld,\"done\":%ld,\"in_time\":%ld,\"unfinished\":%ld,"
           "\"errors\":%lu,\"refused\":%lu,\"exact\":%lu,\"altered\":%lu,\"wrong\":%lu,"
           "\"connects\":%lu,\"count\":%zu,\"per_second\":%.2f,\"steady_chunks\":%lu,"
           "\"steady_seconds\":%.4f,\"cpu_seconds\":%.3f",
           took, clients_count, done, in_time, unfinished, errors, refused, exact, altered, wrong,
           connects, delays.length, (double)delays.length / took, steady,
           steady ? (double)(ending_at - steady_at) / 1e9 : 0,
           (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
               (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6);
    say_series("us", &delays);
    say_series("first_us", &firsts);
    say_series("stream_ms", &durations);
    printf(",\"left\":[");
    const char *comma = "";
    for (long i = 0; i < clients_count; i++) {
        if (!clients[i].left_at) continue;
        printf("%s[%u,%lu]", comma, clients[i].id, clients[i].left_at);
        comma = ",";
    }
    puts("]}");
}

int main(int argc, char **argv) {
    if (argc < 3 || !strstr("streams requests stall", argv[1])) {
        fprintf(stderr, "usage: load streams|requests|stall PORT [name=value ...]\n");
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    stalling = !strcmp(argv[1], "stall");
    streaming = stalling || !strcmp(argv[1], "streams");
    port = atoi(argv[2]);
    if (!streaming) ramp_ms = 0;
    if (stalling) {
        interval_us = 0;
        chunks = 100000000;
    }
    for (int i = 3; i < argc; i++) read_option(argv[i]);
    if (clients_count < 1 || port < 1) {
        fprintf(stderr, "load: clients and the port must be at least 1\n");
        return 2;
    }
    need_descriptors();
    clients = calloc((size_t)clients_count, sizeof *clients);
    if (!clients) fail("memory");
    poller = epoll_create1(0);
    write_request();
    run();
    report();
    return 0;
}
