/* clad: hand log records to the daemon, know how safe each of them is, read them back.
 *
 * Made of client-sdk/c/src by cbindgen: do not edit. client-sdk/c/README.md is the manual.
 *
 * Link with `pkg-config --cflags --libs clad`. Linux, 64 bits. */

#ifndef CLAD_H
#define CLAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** The length of a text that ends with a NUL. */
#define CLAD_NUL ((size_t)-1)
/** A time in milliseconds without an end. */
#define CLAD_FOREVER UINT64_MAX
/** Room for the text of a cursor. */
#define CLAD_CURSOR_BYTES 80

/** Room for any reason of clad_why_waiting(), but for a long path in it. */
#define CLAD_WHY_BYTES 512


/**
 * Outcome of a call. Every error is CLAD_ERR_ARGUMENT or higher; clad_error_text() and its neighbours say more.
 */
enum clad_status
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  /**
   * Done.
   */
  CLAD_OK = 0,
  /**
   * The time is over and nothing is decided: wait again.
   */
  CLAD_PENDING = 1,
  /**
   * A reader has given everything.
   */
  CLAD_END = 2,
  /**
   * An argument is NULL, not in its enumeration, freed, or not what it should be. Nothing was done.
   */
  CLAD_ERR_ARGUMENT = 10,
  /**
   * The address is none, or of a transport that this library does not speak (unix, shm, tcp and tcp+tls).
   */
  CLAD_ERR_ADDRESS = 11,
  /**
   * No connection: nobody listens, no answer in time, not allowed.
   */
  CLAD_ERR_CONNECT = 12,
  /**
   * The daemon refuses; clad_error_code() says why.
   */
  CLAD_ERR_REFUSED = 13,
  /**
   * The log does not offer this level. It is never lowered.
   */
  CLAD_ERR_LEVEL = 14,
  /**
   * Longer than the log, or the memory of the producer, takes.
   */
  CLAD_ERR_TOO_LARGE = 15,
  /**
   * There was no room, and by the rule for that the record was dropped. It is counted.
   */
  CLAD_ERR_DROPPED = 16,
  /**
   * Given up: no daemon, or one that takes nothing, for too long.
   */
  CLAD_ERR_TIMEOUT = 17,
  /**
   * This process is a child of the one that made the handle: free it, and make one here.
   */
  CLAD_ERR_FORKED = 18,
  /**
   * The producer was closed, or has failed: clad_flush() says which.
   */
  CLAD_ERR_CLOSED = 19,
  /**
   * The daemon has refused this producer for good, for example since a newer epoch of it exists.
   */
  CLAD_ERR_FAILED = 20,
  /**
   * Acknowledged records did not survive a crash that their level does not cover. Only clad_flush() says so.
   */
  CLAD_ERR_LOST = 21,
  /**
   * The daemon has forgotten the producer, or another log answers: nobody knows if the record is stored.
   */
  CLAD_ERR_UNKNOWN = 22,
  /**
   * The cursor belongs to an abandoned history, or to another log.
   */
  CLAD_ERR_CURSOR = 23,
  /**
   * Records came damaged.
   */
  CLAD_ERR_DAMAGED = 24,
  /**
   * A defect of this library, or no memory or thread.
   */
  CLAD_ERR_INTERNAL = 25,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum clad_status clad_status;
#else
typedef int32_t clad_status;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * Safety of an acknowledged record, lowest first.
 */
enum clad_level
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  /**
   * Of a call: that of the producer. Of a producer: the highest that the log offers.
   */
  CLAD_LEVEL_DEFAULT = 0,
  /**
   * No answer is sent, nothing is promised.
   */
  CLAD_LEVEL_NONE = 1,
  /**
   * In a stored ring of shared memory, without an offset (shm:// under systemd only).
   */
  CLAD_LEVEL_POSTED = 2,
  /**
   * The daemon holds the record: it survives this process.
   */
  CLAD_LEVEL_RECEIVED = 3,
  /**
   * The kernel has completed the write: it survives the daemon.
   */
  CLAD_LEVEL_WRITTEN = 4,
  /**
   * On stable storage: it survives power loss.
   */
  CLAD_LEVEL_DURABLE = 5,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum clad_level clad_level;
#else
typedef uint32_t clad_level;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * Severity numbers of OpenTelemetry; any other number is kept as well.
 */
enum clad_severity
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  /**
   * Fine-grained debugging.
   */
  CLAD_TRACE = 1,
  /**
   * Debugging.
   */
  CLAD_DEBUG = 5,
  /**
   * Informational.
   */
  CLAD_INFO = 9,
  /**
   * A warning.
   */
  CLAD_WARN = 13,
  /**
   * An error.
   */
  CLAD_ERROR = 17,
  /**
   * The program cannot continue.
   */
  CLAD_FATAL = 21,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum clad_severity clad_severity;
#else
typedef int32_t clad_severity;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * Rule for a record that finds no room (max_buffered_bytes). Every drop is counted, and becomes a record of the log.
 */
enum clad_overload
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  /**
   * Of a call: that of the producer. Of a producer: CLAD_OVERLOAD_DROP_NEWEST.
   */
  CLAD_OVERLOAD_DEFAULT = 0,
  /**
   * It is dropped. The call never waits.
   */
  CLAD_OVERLOAD_DROP_NEWEST = 1,
  /**
   * The call waits for room for at most wait_ms; then the record is dropped.
   */
  CLAD_OVERLOAD_WAIT = 2,
  /**
   * Records that were never sent make room, oldest first. The call never waits.
   */
  CLAD_OVERLOAD_DROP_OLDEST = 3,
  /**
   * Below keep_severity it is dropped; else others below make room, and the call waits for at most wait_ms.
   */
  CLAD_OVERLOAD_DROP_BELOW = 4,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum clad_overload clad_overload;
#else
typedef uint32_t clad_overload;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * Type of a value.
 */
enum clad_type
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  /**
   * UTF-8 in data. What is not UTF-8 is stored as bytes.
   */
  CLAD_TYPE_STRING = 1,
  /**
   * Bytes in data.
   */
  CLAD_TYPE_BYTES = 2,
  /**
   * A number in integer.
   */
  CLAD_TYPE_INT = 3,
  /**
   * A number in real.
   */
  CLAD_TYPE_DOUBLE = 4,
  /**
   * In integer: 0 is false, anything else is true.
   */
  CLAD_TYPE_BOOL = 5,
  /**
   * Nothing. Only a reader gives it.
   */
  CLAD_TYPE_EMPTY = 6,
  /**
   * A list, or what else this header has no type for. Only a reader gives it, without its content.
   */
  CLAD_TYPE_OTHER = 7,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum clad_type clad_type;
#else
typedef uint32_t clad_type;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * Place at which a reader starts.
 */
enum clad_start_at
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  /**
   * At the oldest record. What was removed before it comes as a gap.
   */
  CLAD_START_OLDEST = 0,
  /**
   * At the offset start_value.
   */
  CLAD_START_OFFSET = 1,
  /**
   * At the last start_value records; 0 is only what comes from now on.
   */
  CLAD_START_TAIL = 2,
  /**
   * At start_cursor, where an earlier reader stopped.
   */
  CLAD_START_CURSOR = 3,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum clad_start_at clad_start_at;
#else
typedef uint32_t clad_start_at;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * Kind of an event.
 */
enum clad_event_kind
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  /**
   * A record.
   */
  CLAD_EVENT_RECORD = 1,
  /**
   * The offsets from offset to end_offset cannot be read; the reader goes on behind them.
   */
  CLAD_EVENT_GAP = 2,
  /**
   * A reader that follows has given all there is so far. Comes again each time it has.
   */
  CLAD_EVENT_CAUGHT_UP = 3,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum clad_event_kind clad_event_kind;
#else
typedef uint32_t clad_event_kind;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * Why offsets cannot be read.
 */
enum clad_gap
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  /**
   * Removed by the operator's rule.
   */
  CLAD_GAP_RETENTION = 1,
  /**
   * Damaged on the disk.
   */
  CLAD_GAP_DAMAGE = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum clad_gap clad_gap;
#else
typedef uint32_t clad_gap;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * A producer: it appends records, and has a thread that talks to the daemon. Any number of threads may use it at once.
 */
typedef struct clad_producer clad_producer;

/**
 * A reader. One thread at a time uses it.
 */
typedef struct clad_reader clad_reader;

/**
 * The outcome of an append, when it comes. One thread at a time uses it.
 */
typedef struct clad_ticket clad_ticket;

/**
 * Settings of a producer. Begin with CLAD_OPTIONS_INIT; what is 0 or NULL has its default. Nothing is kept of what the
 * pointers point to.
 */
typedef struct clad_options {
  /**
   * sizeof(clad_options).
   */
  size_t size;
  /**
   * unix://PATH, tcp://HOST:PORT, shm://PATH (a ring of shared memory), or within TLS
   * tcp+tls://HOST:PORT?ca=FILE&cert=FILE&key=FILE&server_name=NAME. Default: the environment's CLAD_SERVER, else
   * unix:///run/clad/clad.sock.
   */
  const char *address;
  /**
   * The component (service.name) of the records. Default: the name of the program's file.
   */
  const char *component;
  /**
   * 16 bytes that name a producer which the program resumes after its own end; needs a higher producer_epoch each
   * time. Default: a random id.
   */
  const uint8_t *producer_id;
  /**
   * The secret that the id is bound to over TCP, 32 bytes at most. Default: random.
   */
  const uint8_t *secret;
  /**
   * Bytes of the secret.
   */
  size_t secret_len;
  /**
   * Fences off the producer's lower epochs. Only with producer_id.
   */
  uint32_t producer_epoch;
  /**
   * A clad_level: that of a call which names none.
   */
  uint32_t level;
  /**
   * A clad_level: clad_connect() waits, for 30 seconds at most, until the last record that the log has of producer_id
   * has reached it. Default: it does not.
   */
  uint32_t resume_level;
  /**
   * A clad_overload: the rule of a call which names none.
   */
  uint32_t overload;
  /**
   * Of CLAD_OVERLOAD_DROP_BELOW.
   */
  int32_t keep_severity;
  /**
   * The longest wait for room, milliseconds; 0 never waits.
   */
  uint64_t wait_ms;
  /**
   * Bytes that may wait for their receipts, 256 for each record included; 1 KiB to 4 GiB. Default: 16 MiB.
   */
  uint64_t max_buffered_bytes;
  /**
   * Records that are grouped into one append while the producer is busy, up to 2^20. Default: 1.
   */
  uint32_t max_append_records;
  /**
   * The first wait between tries to connect, milliseconds; doubled each time. Default: 10.
   */
  uint32_t backoff_first_ms;
  /**
   * The longest of these waits. Default: 2000.
   */
  uint32_t backoff_max_ms;
  /**
   * The longest time of one try to connect, milliseconds. Default: 5000.
   */
  uint64_t connect_timeout_ms;
  /**
   * The longest time that a record is tried again while no daemon takes it, milliseconds. Default: 300000.
   */
  uint64_t delivery_timeout_ms;
} clad_options;

/**
 * An attribute: a key, and a value of a type. clad_string() and its neighbours make one.
 */
typedef struct clad_attribute {
  /**
   * The key, UTF-8.
   */
  const char *key;
  /**
   * Bytes of the key; CLAD_NUL: up to its NUL.
   */
  size_t key_len;
  /**
   * Of CLAD_TYPE_STRING and CLAD_TYPE_BYTES: the value.
   */
  const void *data;
  /**
   * Bytes of it; CLAD_NUL: up to its NUL.
   */
  size_t data_len;
  /**
   * Of CLAD_TYPE_INT and CLAD_TYPE_BOOL: the value.
   */
  int64_t integer;
  /**
   * Of CLAD_TYPE_DOUBLE: the value.
   */
  double real;
  /**
   * A clad_type.
   */
  uint32_t value_type;
} clad_attribute;

/**
 * A record. Begin with CLAD_RECORD_INIT or clad_text(); what is 0 or NULL is left out. Nothing is kept of what the
 * pointers point to.
 */
typedef struct clad_record {
  /**
   * sizeof(clad_record).
   */
  size_t size;
  /**
   * When it happened, Unix nanoseconds. 0: now.
   */
  uint64_t time_unix_nano;
  /**
   * The message: UTF-8, which may contain NUL. What is not UTF-8 is stored as bytes.
   */
  const void *body;
  /**
   * Bytes of the message; CLAD_NUL (as CLAD_RECORD_INIT has it): up to its NUL.
   */
  size_t body_len;
  /**
   * The attributes.
   */
  const struct clad_attribute *attributes;
  /**
   * The number of attributes.
   */
  size_t attributes_count;
  /**
   * The program's own word for the severity, UTF-8.
   */
  const char *severity_text;
  /**
   * The name of the event, UTF-8.
   */
  const char *event_name;
  /**
   * 16 bytes.
   */
  const uint8_t *trace_id;
  /**
   * 8 bytes.
   */
  const uint8_t *span_id;
  /**
   * A clad_severity.
   */
  int32_t severity;
  /**
   * CLAD_TYPE_STRING, also as 0, or CLAD_TYPE_BYTES.
   */
  uint32_t body_type;
} clad_record;

/**
 * Settings of one call. Begin with CLAD_CALL_INIT; what is 0 is that of the producer.
 */
typedef struct clad_call {
  /**
   * sizeof(clad_call).
   */
  size_t size;
  /**
   * A clad_level.
   */
  uint32_t level;
  /**
   * A clad_overload.
   */
  uint32_t overload;
  /**
   * Of CLAD_OVERLOAD_DROP_BELOW.
   */
  int32_t keep_severity;
  /**
   * Of CLAD_OVERLOAD_WAIT and CLAD_OVERLOAD_DROP_BELOW, milliseconds.
   */
  uint64_t wait_ms;
} clad_call;

/**
 * The daemon's word that records have reached a level.
 */
typedef struct clad_receipt {
  /**
   * The log that has them.
   */
  uint8_t log_id[16];
  /**
   * Offset of the first record; the others follow.
   */
  uint64_t first_offset;
  /**
   * The epoch in which the offsets hold.
   */
  uint32_t epoch;
  /**
   * The number of records.
   */
  uint32_t count;
  /**
   * The clad_level that they have reached.
   */
  uint32_t level;
  /**
   * 1 if there is an offset: levels below CLAD_LEVEL_RECEIVED have none.
   */
  uint32_t has_offset;
} clad_receipt;

/**
 * The counters of a producer since it was made; records, unless the name says otherwise.
 *
 * Each record that was handed over or dropped is counted in `submitted`. Once it has ended it is counted in one of
 * `acked`, `failed` and `dropped`: when nothing waits, the three add up to the one.
 */
typedef struct clad_stats {
  /**
   * sizeof(clad_stats).
   */
  size_t size;
  /**
   * Handed over, or dropped instead.
   */
  uint64_t submitted;
  /**
   * Sent for the first time.
   */
  uint64_t sent;
  /**
   * Reached their level.
   */
  uint64_t acked;
  /**
   * Sent again.
   */
  uint64_t resent;
  /**
   * Ended with an error.
   */
  uint64_t failed;
  /**
   * Dropped, for whatever reason.
   */
  uint64_t dropped;
  /**
   * Of these: there was no room.
   */
  uint64_t dropped_no_room;
  /**
   * There was no room until the deadline.
   */
  uint64_t dropped_deadline;
  /**
   * They made room for newer ones.
   */
  uint64_t dropped_oldest;
  /**
   * They were below the severity that is kept.
   */
  uint64_t dropped_severity;
  /**
   * They had the level none, and no daemon took them in time.
   */
  uint64_t dropped_undelivered;
  /**
   * They were longer than the log takes.
   */
  uint64_t dropped_too_large;
  /**
   * The producer had ended.
   */
  uint64_t dropped_ended;
  /**
   * Records that report drops; they are counted in `submitted`, too.
   */
  uint64_t drop_reports;
  /**
   * Connections made after the first.
   */
  uint64_t reconnects;
  /**
   * Bytes that wait for their receipts now.
   */
  uint64_t buffered_bytes;
  /**
   * Appends that wait for their receipts now.
   */
  uint64_t pending_appends;
} clad_stats;

/**
 * Records that a reader wants: those for which all that is stated holds. The daemon leaves out the others. Begin with
 * CLAD_FILTER_INIT; what is 0 or NULL states nothing. Nothing is kept of what the pointers point to.
 */
typedef struct clad_filter {
  /**
   * sizeof(clad_filter).
   */
  size_t size;
  /**
   * Components (service.name); the record is of one of them. A text that ends with * is each that begins so.
   */
  const char *const *components;
  /**
   * The number of components.
   */
  size_t components_count;
  /**
   * Attributes that the record itself has, equal in type and value. 1 is neither 1.0 nor "1".
   */
  const struct clad_attribute *attributes;
  /**
   * The number of attributes.
   */
  size_t attributes_count;
  /**
   * A text in the body, where that is text or bytes; another body is given, none is not.
   */
  const char *body_contains;
  /**
   * 16 bytes: the trace of the record.
   */
  const uint8_t *trace_id;
  /**
   * 16 bytes: the producer of the record.
   */
  const uint8_t *producer_id;
  /**
   * The least severity. A record without one is below all.
   */
  int32_t min_severity;
  /**
   * 0.
   */
  uint32_t reserved;
} clad_filter;

/**
 * Settings of a reader. Begin with CLAD_READER_OPTIONS_INIT; what is 0 or NULL has its default.
 */
typedef struct clad_reader_options {
  /**
   * sizeof(clad_reader_options).
   */
  size_t size;
  /**
   * As in clad_options.
   */
  const char *address;
  /**
   * Of CLAD_START_CURSOR: what clad_reader_cursor() gave.
   */
  const char *start_cursor;
  /**
   * Of CLAD_START_OFFSET and CLAD_START_TAIL.
   */
  uint64_t start_value;
  /**
   * A clad_start_at.
   */
  uint32_t start;
  /**
   * 1: go on with what is appended later, over disconnects. 0: end at the end.
   */
  uint32_t follow;
  /**
   * The end after so many records; 0 is none.
   */
  uint64_t limit;
  /**
   * Leave out records before this time, Unix nanoseconds; 0 is none. A record's time is time_unix_nano of its event.
   * The limit counts records that are given.
   */
  int64_t since;
  /**
   * Leave out records after this time, Unix nanoseconds; 0 is none.
   */
  int64_t until;
  /**
   * CLAD_LEVEL_WRITTEN or CLAD_LEVEL_DURABLE: give a record only when it has reached this. Default: written.
   */
  uint32_t level;
  /**
   * The longest time of one try to connect, milliseconds. Default: 5000.
   */
  uint32_t connect_timeout_ms;
  /**
   * The longest time that a reader which follows tries to connect again, milliseconds. Default: 300000.
   */
  uint64_t reconnect_timeout_ms;
  /**
   * Give only what matches. Default: NULL, everything.
   */
  const struct clad_filter *filter;
} clad_reader_options;

/**
 * An event of a reader. Every text ends with a NUL, which its length does not count; it may contain others.
 */
typedef struct clad_event {
  /**
   * sizeof(clad_event).
   */
  size_t size;
  /**
   * Of a record: its offset. Of a gap: the first that is missing.
   */
  uint64_t offset;
  /**
   * The offset behind it.
   */
  uint64_t end_offset;
  /**
   * When it happened, else when it was seen, else when the daemon took it; Unix nanoseconds.
   */
  uint64_t time_unix_nano;
  /**
   * When the daemon took it.
   */
  uint64_t append_time_unix_nano;
  /**
   * The body, without a key; of the type 0 where there is none.
   */
  struct clad_attribute body;
  /**
   * The attributes.
   */
  const struct clad_attribute *attributes;
  /**
   * The number of attributes.
   */
  size_t attributes_count;
  /**
   * The component (service.name).
   */
  const char *component;
  /**
   * The source's word for the severity.
   */
  const char *severity_text;
  /**
   * The name of the event.
   */
  const char *event_name;
  /**
   * The severity.
   */
  int32_t severity;
  /**
   * A clad_event_kind.
   */
  uint32_t kind;
  /**
   * Of a gap: a clad_gap.
   */
  uint32_t gap;
  /**
   * 0.
   */
  uint32_t reserved;
} clad_event;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * The name of a status, for example "CLAD_OK". Never NULL.
 */
const char *clad_status_name(int32_t status);

/**
 * The version of the library, for example "0.0.1".
 */
const char *clad_version(void);

/**
 * The last error of this thread, for a person: what is wrong, where, and if the record may be in the log. "" before
 * the first one. It is valid until the next call of this thread that fails. Never NULL.
 */
const char *clad_error_text(void);

/**
 * The daemon's code of the last error of this thread (docs/PROTOCOL.md lists them); 0 where the daemon has not refused.
 */
uint32_t clad_error_code(void);

/**
 * True if the same call, later and unchanged, can succeed. Of the last error of this thread.
 */
bool clad_error_is_retryable(void);

/**
 * True if a reader may find the records all the same; false: they are certainly not in the log. Of the last error of
 * this thread.
 */
bool clad_error_maybe_written(void);

/**
 * Connects once, for at most connect_timeout_ms, and makes a producer. `options` may be NULL: all defaults. On an
 * error *producer is NULL.
 */
clad_status clad_connect(const struct clad_options *options,
                         struct clad_producer **producer);

/**
 * Makes a producer without waiting for a daemon: it connects by itself, and records wait for that. `options` may be
 * NULL, and has no resume_level.
 */
clad_status clad_start(const struct clad_options *options,
                       struct clad_producer **producer);

/**
 * Hands over `count` records as one append: stored whole or not at all, with consecutive offsets. All of them have the
 * size of the first one. `call` may be NULL. *ticket gives the outcome, and must be freed; `ticket` may be NULL: then
 * clad_flush() reports an error of it.
 *
 * It waits for room only where the rule for overload says so. An error says that nothing was handed over: the records
 * are certainly not written. CLAD_ERR_DROPPED and CLAD_ERR_TOO_LARGE are counted as drops.
 */
clad_status clad_append(struct clad_producer *producer,
                        const struct clad_record *records,
                        size_t count,
                        const struct clad_call *call,
                        struct clad_ticket **ticket);

/**
 * Hands over one record and waits until it has reached its level, for at most `timeout_ms` after it found room. `call`
 * and `receipt` may be NULL. After CLAD_ERR_TIMEOUT the record is still under way: it may be written, or not.
 */
clad_status clad_append_wait(struct clad_producer *producer,
                             const struct clad_record *record,
                             const struct clad_call *call,
                             uint64_t timeout_ms,
                             struct clad_receipt *receipt);

/**
 * Logs a text that ends with a NUL, with attributes (NULL and 0: none): fire and forget, at the producer's level.
 *
 * It waits for room only where the rule for overload says so, by default never. The record is sent again until it has
 * reached its level; if it cannot, clad_flush() says so. An error says that it is not written, and by CLAD_ERR_DROPPED
 * and CLAD_ERR_TOO_LARGE that it is counted as dropped.
 */
clad_status clad_log(struct clad_producer *producer,
                     int32_t severity,
                     const char *text,
                     const struct clad_attribute *attributes,
                     size_t attributes_count);

/**
 * As clad_log(), of a whole record. `call` may be NULL.
 */
clad_status clad_log_record(struct clad_producer *producer,
                            const struct clad_record *record,
                            const struct clad_call *call);

/**
 * Waits until every record that was handed over before has reached `level`, for at most `timeout_ms`.
 *
 * It also reports the worst error of a record without a ticket, or whose ticket was freed, since the last flush.
 */
clad_status clad_flush(struct clad_producer *producer,
                       uint32_t level,
                       uint64_t timeout_ms);

/**
 * Brings every record to the producer's level and ends the producer, for all threads. Waits at most `timeout_ms`; then
 * it goes on in the background, as long as the process lives. The handle stays, for statistics, until
 * clad_producer_free().
 */
clad_status clad_close(struct clad_producer *producer,
                       uint64_t timeout_ms);

/**
 * Frees a producer; NULL is nothing. No other call may have it. One that was not closed goes on for 2 seconds at most in
 * the background, to bring records home. In a child of fork it only frees.
 */
clad_status clad_producer_free(struct clad_producer *producer);

/**
 * The counters so far. Begin with CLAD_STATS_INIT.
 */
clad_status clad_get_stats(struct clad_producer *producer, struct clad_stats *stats);

/**
 * The number of records that the log had of this producer_id when the producer was made: where a program that was
 * killed goes on, if each of its records is one of this producer. CLAD_PENDING while there was no connection.
 */
clad_status clad_next_sequence(struct clad_producer *producer,
                               uint64_t *sequence);

/**
 * Writes the reason why nothing goes forward, for a person, with a NUL: a daemon that is away, or that refuses for now.
 * A text that is longer than `text_size` is cut. "" while appends are taken.
 */
clad_status clad_why_waiting(struct clad_producer *producer,
                             char *text,
                             size_t text_size);

/**
 * True if records go into a ring of shared memory now. An address of shm:// asks for one; without it they go over the
 * socket.
 */
bool clad_has_ring(struct clad_producer *producer);

/**
 * Waits for the outcome, for at most `timeout_ms`; 0 only looks. CLAD_PENDING: not yet. CLAD_OK: the records have
 * reached their level; `receipt` may be NULL. Any error is the outcome. The outcome stays the same until
 * clad_ticket_free().
 */
clad_status clad_ticket_wait(struct clad_ticket *ticket,
                             uint64_t timeout_ms,
                             struct clad_receipt *receipt);

/**
 * Frees a ticket; NULL is nothing. The append goes on: if it ends with an error, clad_flush() says so.
 */
clad_status clad_ticket_free(struct clad_ticket *ticket);

/**
 * Opens a reader: connects, for at most connect_timeout_ms. `options` may be NULL: from the oldest record to the end.
 * On an error *reader is NULL.
 */
clad_status clad_reader_open(const struct clad_reader_options *options,
                             struct clad_reader **reader);

/**
 * Gives the next event, waiting for at most `timeout_ms`. CLAD_PENDING: there is none yet. CLAD_END: there is none any
 * more. Begin with CLAD_EVENT_INIT; what the event points to is valid until the next call with this reader.
 */
clad_status clad_reader_next(struct clad_reader *reader,
                             uint64_t timeout_ms,
                             struct clad_event *event);

/**
 * Writes the place behind the last event as a text of less than CLAD_CURSOR_BYTES bytes, with a NUL. A reader that
 * starts there misses nothing and gets nothing twice. CLAD_PENDING: there was no event yet.
 */
clad_status clad_reader_cursor(struct clad_reader *reader,
                               char *text,
                               size_t text_size);

/**
 * Frees a reader; NULL is nothing.
 */
clad_status clad_reader_free(struct clad_reader *reader);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* CLAD_H */

#ifndef CLAD_H_MADE_BY_HAND
#define CLAD_H_MADE_BY_HAND

#define CLAD_OPTIONS_INIT \
  {sizeof(clad_options), NULL, NULL, NULL, NULL, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
#define CLAD_CALL_INIT {sizeof(clad_call), 0, 0, 0, 0}
#define CLAD_RECORD_INIT \
  {sizeof(clad_record), 0, NULL, CLAD_NUL, NULL, 0, NULL, NULL, NULL, NULL, 0, CLAD_TYPE_STRING}
#define CLAD_STATS_INIT {sizeof(clad_stats), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
#define CLAD_READER_OPTIONS_INIT \
  {sizeof(clad_reader_options), NULL, NULL, 0, 0, 0, 0, 0, 0, 0, 0, 0, NULL}
#define CLAD_FILTER_INIT {sizeof(clad_filter), NULL, 0, NULL, 0, NULL, NULL, NULL, 0, 0}
#define CLAD_EVENT_INIT \
  {sizeof(clad_event), 0, 0, 0, 0, {NULL, 0, NULL, 0, 0, 0, 0}, NULL, 0, NULL, NULL, NULL, 0, 0, 0, 0}

/** A record that is a severity and a text with a NUL at its end. */
static inline clad_record clad_text(int32_t severity, const char *text) {
  clad_record record = CLAD_RECORD_INIT;
  record.severity = severity;
  record.body = text;
  return record;
}

/** An attribute: a text with a NUL at its end. */
static inline clad_attribute clad_string(const char *key, const char *text) {
  clad_attribute attribute = {key, CLAD_NUL, text, CLAD_NUL, 0, 0, CLAD_TYPE_STRING};
  return attribute;
}

/** An attribute: bytes. */
static inline clad_attribute clad_bytes(const char *key, const void *data, size_t len) {
  clad_attribute attribute = {key, CLAD_NUL, data, len, 0, 0, CLAD_TYPE_BYTES};
  return attribute;
}

/** An attribute: a number. */
static inline clad_attribute clad_int(const char *key, int64_t number) {
  clad_attribute attribute = {key, CLAD_NUL, NULL, 0, number, 0, CLAD_TYPE_INT};
  return attribute;
}

/** An attribute: a floating-point number. */
static inline clad_attribute clad_double(const char *key, double number) {
  clad_attribute attribute = {key, CLAD_NUL, NULL, 0, 0, number, CLAD_TYPE_DOUBLE};
  return attribute;
}

/** An attribute: true or false. */
static inline clad_attribute clad_bool(const char *key, bool value) {
  clad_attribute attribute = {key, CLAD_NUL, NULL, 0, value, 0, CLAD_TYPE_BOOL};
  return attribute;
}

#endif
