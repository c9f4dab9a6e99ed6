/* emulator.c: two SGLang-shaped servers in one thread, as fast as a core allows.
 *
 *   gcc -O2 -o emulator emulator.c && ./emulator SPEC_PORT BASE_PORT
 *
 * Listens on 127.0.0.1 only. The first port is the server that speculates.
 *
 * POST, any path   A prompt with a plan says how to answer; its words, all of them optional:
 *                    @plan id=00000007 chunks=200 interval_us=20000 first_ms=0 lockstep=0 .
 *                  `"stream": true` gets that many chunks, each in a write of its own; interval 0
 *                  is as fast as the socket takes them, lockstep lets all streams tick at the same
 *                  moments, as an engine's batch does. The head goes out with the first chunk if
 *                  first_ms is not 0. Without a stream: a fixed answer of 1 KiB, at once.
 * GET, any path    what the server says of itself (pages.h), and for the measures
 *                    /emulator/stats   counts as JSON
 *                    /emulator/left    a line "id t_ns" for each stream whose client left early
 *                    /emulator/reset   forget both
 *
 * A stream whose reader does not keep up misses ticks rather than being sent later in a burst.
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
#include "pages.h"
#include "wire.h"

#define SERVERS 2
#define MOST_LEFT 65536
#define SEARCHED 4096  /* plan and `stream` are looked for in so much of either end of a body */
#define EVENTS 512

static const char STREAM_HEAD[] =
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    "cache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n";

struct bytes {
    char *data;
    size_t at, length, room;   /* the unsent or unread part is data[at .. at + length] */
};

struct connection {
    int fd, gone, closes, wants_out;
    struct server *server;     /* NULL: it listens */
    struct server *accepts_for;
    struct bytes in, out;
    size_t head, body, scanned; /* of the request being read; head 0: not complete yet */
    int chunked;
    int streams, headed;       /* a stream is being written; its head has been */
    uint32_t id, next, chunks;
    uint64_t interval, due;    /* ns */
    int place;                 /* in the heap of timers, -1 for none */
    struct connection *next_gone;
};

static int poller;
static struct server servers[SERVERS] = {{.speculates = 1}, {.speculates = 0}};
static struct { uint32_t id; uint64_t at; } left[MOST_LEFT];
static uint64_t lefts, ended, blocked;
static struct connection *gone;

static void fail(const char *what) {
    fprintf(stderr, "emulator: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void make_room(struct bytes *in, size_t more) {
    if (in->at + in->length + more <= in->room) return;
    if (in->at) memmove(in->data, in->data + in->at, in->length);
    in->at = 0;
    if (in->length + more <= in->room) return;
    in->room = (in->length + more) * 2;
    in->data = realloc(in->data, in->room);
    if (!in->data) fail("memory");
}

/* --- timers: a heap by `due` ------------------------------------------------------------- */

static struct connection **heap;
static int timers, heap_room;

static void settle(int i, struct connection *c) {
    for (; i > 0 && heap[(i - 1) / 2]->due > c->due; i = (i - 1) / 2) {
        heap[i] = heap[(i - 1) / 2];
        heap[i]->place = i;
    }
    for (;;) {
        int child = 2 * i + 1;
        if (child + 1 < timers && heap[child + 1]->due < heap[child]->due) child++;
        if (child >= timers || heap[child]->due >= c->due) break;
        heap[i] = heap[child];
        heap[i]->place = i;
        i = child;
    }
    heap[i] = c;
    c->place = i;
}

static void set_timer(struct connection *c, uint64_t due) {
    c->due = due;
    if (c->place < 0) {
        if (timers == heap_room) {
            heap_room = heap_room ? heap_room * 2 : 1024;
            heap = realloc(heap, (size_t)heap_room * sizeof *heap);
            if (!heap) fail("memory");
        }
        c->place = timers++;
    }
    settle(c->place, c);
}

static void stop_timer(struct connection *c) {
    int i = c->place;
    if (i < 0) return;
    c->place = -1;
    struct connection *last = heap[--timers];
    if (last != c) settle(i, last);
}

/* --- connections -------------------------------------------------------------------------- */

static void drop(struct connection *c) {
    if (c->gone) return;
    if (c->streams) {
        left[lefts % MOST_LEFT].id = c->id;
        left[lefts++ % MOST_LEFT].at = now_ns();
        c->server->running--;
    }
    stop_timer(c);
    close(c->fd);
    c->gone = 1;
    c->next_gone = gone;       /* freed after this round: its events may still be in hand */
    gone = c;
}

static void watch(struct connection *c, int out) {
    if (c->wants_out == out) return;
    c->wants_out = out;
    struct epoll_event e = {.events = EPOLLIN | EPOLLRDHUP | (out ? EPOLLOUT : 0u), .data.ptr = c};
    epoll_ctl(poller, EPOLL_CTL_MOD, c->fd, &e);
}

/* What the socket does not take now waits in `out`. */
static void say(struct connection *c, const char *data, size_t length) {
    if (!c->out.length) {
        ssize_t sent = send(c->fd, data, length, MSG_NOSIGNAL);
        if (sent == (ssize_t)length) return;
        if (sent < 0 && errno != EAGAIN) {
            drop(c);
            return;
        }
        if (sent > 0) {
            data += sent;
            length -= (size_t)sent;
        }
        blocked++;
    }
    make_room(&c->out, length);
    memcpy(c->out.data + c->out.at + c->out.length, data, length);
    c->out.length += length;
    watch(c, 1);
}

static void say_more(struct connection *c) {
    while (c->out.length) {
        ssize_t sent = send(c->fd, c->out.data + c->out.at, c->out.length, MSG_NOSIGNAL);
        if (sent < 0) {
            if (errno != EAGAIN) drop(c);
            return;
        }
        c->out.at += (size_t)sent;
        c->out.length -= (size_t)sent;
    }
    c->out.at = 0;
    watch(c, 0);
    if (c->closes && !c->streams) drop(c);
    else if (c->streams && c->place < 0) set_timer(c, now_ns());
}

/* --- answers ------------------------------------------------------------------------------ */

static void answer(struct connection *c, const char *type, const char *body, size_t length) {
    char *whole = malloc(length + 256);
    if (!whole) fail("memory");
    int head = sprintf(whole, "HTTP/1.1 200 OK\r\ncontent-type: %s\r\ncontent-length: %zu\r\n\r\n",
                       type, length);
    memcpy(whole + head, body, length);
    say(c, whole, (size_t)head + length);
    free(whole);
    if (!c->gone && c->closes && !c->out.length) drop(c);
}

static void end_stream(struct connection *c) {
    c->streams = 0;
    c->server->running--;
    c->server->streams++;
    ended++;
    stop_timer(c);
    if (c->closes && !c->out.length) drop(c);
}

/* The next chunk, in one write with its framing. */
static void step(struct connection *c) {
    char framed[CHUNK_ROOM + 64], event[CHUNK_ROOM];
    if (!c->headed) {
        c->headed = 1;
        say(c, STREAM_HEAD, sizeof STREAM_HEAD - 1);
        if (c->gone) return;
    }
    int last = c->next >= c->chunks;
    size_t length = last ? write_last(event, c->id) : write_chunk(event, c->id, c->next, now_ns());
    int n = sprintf(framed, "%zx\r\n", length);
    char *end = put_text(framed + n, event, length);
    end = PUT(end, "\r\n");
    if (last) end = PUT(end, "e\r\n" DONE "\r\n0\r\n\r\n");
    say(c, framed, (size_t)(end - framed));
    if (c->gone) return;
    if (last) {
        end_stream(c);
        return;
    }
    c->next++;
    c->server->chunks++;
}

/* A stream is due. */
static void tick(struct connection *c, uint64_t now) {
    if (!c->out.length) step(c);
    if (c->gone || !c->streams) return;
    if (!c->interval) {
        if (c->out.length) stop_timer(c);   /* say_more sets it again */
        else set_timer(c, now + 1);         /* one chunk of each stream in a round */
        return;
    }
    uint64_t due = c->due + c->interval;
    set_timer(c, due + 1000000000u < now ? now : due);  /* no burst after this machine stood still */
}

static long long number_of(const char *plan, const char *name, int base, long long otherwise) {
    const char *at = plan ? strstr(plan, name) : NULL;
    return at ? strtoll(at + strlen(name), NULL, base) : otherwise;
}

static int asks_for_stream(const char *body) {
    const char *at = strstr(body, "\"stream\"");
    if (!at) return 0;
    at += 8;
    return !strncmp(at + strspn(at, ": "), "true", 4);
}

static void start_stream(struct connection *c, const char *plan) {
    c->chunks = (uint32_t)number_of(plan, " chunks=", 10, 200);
    c->id = (uint32_t)number_of(plan, " id=", 16, 0);
    c->interval = (uint64_t)number_of(plan, " interval_us=", 10, 20000) * 1000u;
    uint64_t first = (uint64_t)number_of(plan, " first_ms=", 10, 0) * 1000000u;
    c->next = 0;
    c->headed = 0;
    c->streams = 1;
    c->server->running++;
    uint64_t due = now_ns() + first;
    if (number_of(plan, " lockstep=", 10, 0) && c->interval)
        due = (due / c->interval + 1) * c->interval;
    if (!first) {
        c->headed = 1;
        say(c, STREAM_HEAD, sizeof STREAM_HEAD - 1);
    }
    if (!c->gone) set_timer(c, due);
}

static void on_post(struct connection *c, const char *body, size_t length) {
    char ends[2 * SEARCHED + 1];
    size_t kept = length < 2 * SEARCHED ? length : 2 * SEARCHED;
    memcpy(ends, body, kept);
    if (length > kept) memcpy(ends + SEARCHED, body + length - SEARCHED, SEARCHED);
    ends[kept] = 0;
    if (asks_for_stream(ends)) {
        char *plan = strstr(ends, PLAN);
        if (plan) plan[strcspn(plan, ".")] = 0;
        start_stream(c, plan);
        return;
    }
    c->server->replies++;
    answer(c, "application/json", reply_body(), REPLY_BYTES);
}

static int say_stats(char *into) {
    const struct server *s = servers;
    return sprintf(into,
                   "{\"requests\":[%lu,%lu],\"connections\":[%lu,%lu],\"running\":[%d,%d],"
                   "\"ended\":%lu,\"left\":%lu,\"blocked\":%lu}",
                   s[0].requests, s[1].requests, s[0].connections, s[1].connections, s[0].running,
                   s[1].running, ended, lefts, blocked);
}

static void say_left(struct connection *c) {
    uint64_t count = lefts < MOST_LEFT ? lefts : MOST_LEFT;
    char *text = malloc(count * 40 + 1);
    if (!text) fail("memory");
    size_t length = 0;
    for (uint64_t i = 0; i < count; i++)
        length += (size_t)sprintf(text + length, "%u %lu\n", left[i].id, left[i].at);
    answer(c, "text/plain", text, length);
    free(text);
}

static void on_get(struct connection *c, const char *path) {
    static char page[PAGE_ROOM];
    int length;
    if (!strncmp(path, "/emulator/left", 14)) {
        say_left(c);
        return;
    }
    if (!strncmp(path, "/emulator/stats", 15)) length = say_stats(page);
    else if (!strncmp(path, "/emulator/reset", 15)) {
        lefts = ended = blocked = 0;
        for (int i = 0; i < SERVERS; i++) servers[i].requests = servers[i].connections = 0;
        length = sprintf(page, "{}");
    } else length = say_page(page, path, c->server);
    answer(c, "application/json", page, (size_t)length);
}

/* --- requests ----------------------------------------------------------------------------- */

static const char *header(const char *head, size_t length, const char *name) {
    size_t n = strlen(name);
    for (const char *line = head; line < head + length;) {
        const char *end = memmem(line, (size_t)(head + length - line), "\r\n", 2);
        if (!end) break;
        if ((size_t)(end - line) > n && line[n] == ':' && !strncasecmp(line, name, n))
            return line + n + 1 + strspn(line + n + 1, " ");
        line = end + 2;
    }
    return NULL;
}

/* A chunked body is put together in place. Its length, or -1 where it is not complete; `used` is
 * what it took on the wire. */
static long long unchunk(char *data, size_t length, size_t *used, int store) {
    size_t at = 0, whole = 0;
    for (;;) {
        char *line = memmem(data + at, length - at, "\r\n", 2);
        if (!line) return -1;
        size_t size = strtoull(data + at, NULL, 16);
        at = (size_t)(line - data) + 2;
        if (at + size + 2 > length) return -1;
        if (store) memmove(data + whole, data + at, size);
        at += size + 2;
        if (!size) {
            *used = at;
            return (long long)whole;
        }
        whole += size;
    }
}

/* Whether a whole head has come; then its framing is known. */
static int read_head(struct connection *c) {
    if (c->head) return 1;
    char *data = c->in.data + c->in.at;
    size_t from = c->scanned > 3 ? c->scanned - 3 : 0;
    char *end = memmem(data + from, c->in.length - from, "\r\n\r\n", 4);
    c->scanned = c->in.length;
    if (!end) return 0;
    c->head = (size_t)(end - data) + 4;
    const char *value = header(data, c->head, "content-length");
    c->body = value ? strtoull(value, NULL, 10) : 0;
    value = header(data, c->head, "transfer-encoding");
    c->chunked = value && !strncasecmp(value, "chunked", 7);
    value = header(data, c->head, "connection");
    c->closes = value && !strncasecmp(value, "close", 5);
    if (header(data, c->head, "expect")) say(c, "HTTP/1.1 100 Continue\r\n\r\n", 25);
    return !c->gone;
}

/* Whether a whole body has come; then `length` is its own and `used` what it took on the wire. */
static int read_body(struct connection *c, size_t *length, size_t *used) {
    if (!c->chunked) {
        *length = *used = c->body;
        if (c->in.length >= c->head + c->body) return 1;
        make_room(&c->in, c->head + c->body - c->in.length);
        return 0;
    }
    char *data = c->in.data + c->in.at + c->head;
    size_t there = c->in.length - c->head;
    if (unchunk(data, there, used, 0) < 0) return 0;
    *length = (size_t)unchunk(data, there, used, 1);
    return 1;
}

static void serve(struct connection *c) {
    size_t length, used;
    while (!c->gone && !c->streams && c->in.length && read_head(c) && read_body(c, &length, &used)) {
        char *data = c->in.data + c->in.at;
        size_t taken = c->head + used;
        if (!strncmp(data, "POST", 4)) {
            c->server->requests++;
            on_post(c, data + c->head, length);
        } else {
            const char *path = memchr(data, ' ', c->head);
            on_get(c, path ? path + 1 : "/");
        }
        if (c->gone) return;
        c->in.at += taken;
        c->in.length -= taken;
        c->head = c->scanned = 0;
        if (!c->in.length && c->in.room > 1u << 20) {   /* a large body is not kept for a small one */
            free(c->in.data);
            c->in = (struct bytes){0};
        }
    }
}

static void on_readable(struct connection *c) {
    for (;;) {
        make_room(&c->in, 4096);
        size_t room = c->in.room - c->in.at - c->in.length;
        ssize_t got = recv(c->fd, c->in.data + c->in.at + c->in.length, room, 0);
        if (got <= 0) {
            if (got == 0 || errno != EAGAIN) drop(c);
            return;
        }
        c->in.length += (size_t)got;
        serve(c);
        if (c->gone || (size_t)got < room) return;
    }
}

/* --- the loop ----------------------------------------------------------------------------- */

static void listen_on(const char *port, struct server *server) {
    struct connection *c = calloc(1, sizeof *c);
    int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port)),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (!c || bind(fd, (void *)&at, sizeof at) || listen(fd, 4096)) fail(port);
    *c = (struct connection){.fd = fd, .accepts_for = server, .place = -1};
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
    epoll_ctl(poller, EPOLL_CTL_ADD, fd, &e);
}

static void accept_all(struct connection *listener) {
    for (int i = 0; i < 256; i++) {
        int one = 1, fd = accept4(listener->fd, NULL, NULL, SOCK_NONBLOCK);
        if (fd < 0) {
            if (errno == EMFILE || errno == ENFILE) fail("more connections than descriptors");
            return;
        }
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        struct connection *c = calloc(1, sizeof *c);
        if (!c) fail("memory");
        *c = (struct connection){.fd = fd, .server = listener->accepts_for, .place = -1};
        c->server->connections++;
        struct epoll_event e = {.events = EPOLLIN | EPOLLRDHUP, .data.ptr = c};
        epoll_ctl(poller, EPOLL_CTL_ADD, fd, &e);
    }
}

static int wait_for_events(struct epoll_event *events) {
    struct timespec wait, *until = NULL;
    if (timers) {
        uint64_t now = now_ns(), ns = heap[0]->due > now ? heap[0]->due - now : 0;
        wait = (struct timespec){(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
        until = &wait;
    }
    return epoll_pwait2(poller, events, EVENTS, until, NULL);
}

static void free_gone(void) {
    while (gone) {
        struct connection *c = gone;
        gone = c->next_gone;
        free(c->in.data);
        free(c->out.data);
        free(c);
    }
}

int main(int argc, char **argv) {
    struct rlimit files;
    struct epoll_event events[EVENTS];
    if (argc != 1 + SERVERS) {
        fprintf(stderr, "usage: emulator SPEC_PORT BASE_PORT\n");
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    poller = epoll_create1(0);
    for (int i = 0; i < SERVERS; i++) listen_on(argv[1 + i], &servers[i]);
    for (;;) {
        int count = wait_for_events(events);
        for (int i = 0; i < count; i++) {
            struct connection *c = events[i].data.ptr;
            if (c->accepts_for) {
                accept_all(c);
                continue;
            }
            if (!c->gone && events[i].events & EPOLLOUT) say_more(c);
            if (!c->gone && events[i].events & ~(uint32_t)EPOLLOUT) on_readable(c);
        }
        uint64_t now = now_ns();
        while (timers && heap[0]->due <= now) tick(heap[0], now);
        free_gone();
    }
}
