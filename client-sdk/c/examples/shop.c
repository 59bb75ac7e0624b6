/* A shop with worker threads. What happens is logged without waiting; an order is confirmed only when its record is on
 * stable storage, with the number under which it is found again.
 *
 *   cc shop.c $(pkg-config --cflags --libs clad) -lpthread -o shop && ./shop 10 */
#include <clad.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { WORKERS = 4, CONFIRM_MS = 10000 };

static clad_producer *shop_log;
static int orders_each;

/* Writes to the audit trail; only then the order counts. */
static int confirm(int worker, int order) {
  clad_attribute attributes[] = {clad_int("worker", worker), clad_int("order", order), clad_double("amount", 12.5)};
  clad_record record = clad_text(CLAD_INFO, "order taken");
  clad_call durable = CLAD_CALL_INIT;
  clad_receipt receipt;
  record.event_name = "shop.order";
  record.attributes = attributes;
  record.attributes_count = sizeof attributes / sizeof attributes[0];
  durable.level = CLAD_LEVEL_DURABLE;
  if (clad_append_wait(shop_log, &record, &durable, CONFIRM_MS, &receipt) != CLAD_OK) {
    fprintf(stderr, "order %d of worker %d is not taken: %s\n", order, worker, clad_error_text());
    return 0;
  }
  printf("order %d of worker %d is record %" PRIu64 "\n", order, worker, receipt.first_offset);
  return 1;
}

static void *work(void *number) {
  int worker = *(int *)number, order;
  for (order = 0; order < orders_each; order++) {
    clad_attribute attributes[] = {clad_int("worker", worker), clad_string("path", "/order")};
    clad_log(shop_log, CLAD_DEBUG, "request", attributes, 2); /* never waits; what is dropped is counted */
    if (!confirm(worker, order)) break;
  }
  return NULL;
}

int main(int argc, char **argv) {
  clad_options options = CLAD_OPTIONS_INIT; /* the daemon of CLAD_SERVER, else this host's */
  clad_stats stats = CLAD_STATS_INIT;
  pthread_t workers[WORKERS];
  int numbers[WORKERS], at;
  orders_each = argc > 1 ? atoi(argv[1]) : 3;
  options.component = "shop";
  if (clad_start(&options, &shop_log) != CLAD_OK) { /* the shop opens before the daemon, too */
    fprintf(stderr, "no log: %s\n", clad_error_text());
    return 1;
  }
  for (at = 0; at < WORKERS; at++) {
    numbers[at] = at;
    if (pthread_create(&workers[at], NULL, work, &numbers[at]) != 0) return 1;
  }
  for (at = 0; at < WORKERS; at++) pthread_join(workers[at], NULL);
  if (clad_close(shop_log, CONFIRM_MS) != CLAD_OK) /* brings home what is still in memory */
    fprintf(stderr, "not everything is in the log: %s\n", clad_error_text());
  clad_get_stats(shop_log, &stats);
  printf("%" PRIu64 " records, %" PRIu64 " dropped\n", stats.submitted, stats.dropped);
  clad_producer_free(shop_log);
  return 0;
}
