/* What clad_log() costs its thread, with three attributes: a line of nanoseconds for each call on stdout.
 *
 *   log_call ADDRESS EVENTS [LEVEL]
 *
 * LEVEL is the number of a clad_level. Every call is timed. All records must be stored: else it exits with 1.
 * `clad-benches logging_call --c PROGRAM` runs it in turn with others. */
#include <clad.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { EVENT_BYTES = 1024, GROUP_RECORDS = 128, CLOSE_MS = 60000 };

static uint64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

int main(int argc, char **argv) {
  clad_options options = CLAD_OPTIONS_INIT;
  clad_stats stats = CLAD_STATS_INIT;
  clad_producer *producer;
  uint64_t *took;
  size_t events, at;
  if (argc != 3 && argc != 4) return 2;
  events = strtoul(argv[2], NULL, 10);
  took = malloc(events * sizeof *took);
  if (!took) return 1;
  for (at = 0; at < events; at++) took[at] = 1; /* its pages are there before the calls */
  options.address = argv[1];
  options.component = "bench";
  options.max_buffered_bytes = events * EVENT_BYTES;
  /* As the bench has the Rust client. */
  options.max_append_records = strncmp(argv[1], "shm:", 4) == 0 ? 1 : GROUP_RECORDS;
  if (argc == 4) options.level = (uint32_t)strtoul(argv[3], NULL, 10);
  if (clad_connect(&options, &producer) != CLAD_OK) {
    fprintf(stderr, "%s\n", clad_error_text());
    return 1;
  }
  for (at = 0; at < events; at++) {
    uint64_t start = now_ns();
    clad_attribute attributes[] = {clad_int("number", (int64_t)at), clad_string("name", "three fields"),
                                   clad_double("ratio", 0.5)};
    clad_log(producer, CLAD_INFO, "an event", attributes, 3);
    took[at] = now_ns() - start;
  }
  if (clad_flush(producer, CLAD_LEVEL_WRITTEN, CLOSE_MS) != CLAD_OK || clad_close(producer, CLOSE_MS) != CLAD_OK) {
    fprintf(stderr, "%s\n", clad_error_text());
    return 1;
  }
  clad_get_stats(producer, &stats);
  clad_producer_free(producer);
  if (stats.dropped != 0 || stats.acked != events) {
    fprintf(stderr, "%" PRIu64 " of %zu stored, %" PRIu64 " dropped\n", stats.acked, events, stats.dropped);
    return 1;
  }
  for (at = 0; at < events; at++) printf("%" PRIu64 "\n", took[at]);
  free(took);
  return 0;
}
