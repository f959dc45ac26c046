/* SPDX-License-Identifier: Apache-2.0
 *
 * A plugin of QEMU that counts how often the instruction at each address is executed.
 *
 *   qemu-aarch64 -plugin ./libicount.so,out=counts program
 *   qemu-system-arm ... -plugin ./libicount.so,out=counts -kernel firmware.elf
 *
 * When the machine ends, the file has a line "ADDRESS COUNT", the first hexadecimal, for each address that was reached.
 * Distributions have QEMU without its header: what is used of its interface, version 1 (QEMU 4.2 to 8.1), is declared
 * here.
 */
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct qemu_plugin_tb;
struct qemu_plugin_insn;
extern size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *tb);
extern struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *tb, size_t index);
extern uint64_t qemu_plugin_insn_vaddr(const struct qemu_plugin_insn *insn);
extern void qemu_plugin_register_vcpu_tb_trans_cb(uint64_t id, void (*translated)(uint64_t, struct qemu_plugin_tb *));
extern void qemu_plugin_register_vcpu_insn_exec_inline(struct qemu_plugin_insn *insn, int operation, void *count,
                                                       uint64_t added);
extern void qemu_plugin_register_atexit_cb(uint64_t id, void (*ended)(uint64_t, void *), void *data);

extern int qemu_plugin_version;
int qemu_plugin_install(uint64_t id, const void *info, int argc, char **argv);

enum { ADD = 0, PAGE = 4096, BUCKETS = 1024 };

/* The counts of a page's addresses; instructions lie at even ones. */
struct page {
  uint64_t first;
  struct page *next;
  uint64_t counts[PAGE / 2];
};

int qemu_plugin_version = 1;
static struct page *buckets[BUCKETS];
static const char *out;

static uint64_t *count_of(uint64_t address) {
  const uint64_t first = address / PAGE * PAGE;
  struct page **place = &buckets[address / PAGE % BUCKETS], *page = *place;
  while (page != NULL && page->first != first) page = page->next;
  if (page == NULL) {
    page = calloc(1, sizeof *page);
    if (page == NULL) abort();
    page->first = first;
    page->next = *place;
    *place = page;
  }
  return &page->counts[address % PAGE / 2];
}

static void translated(uint64_t id, struct qemu_plugin_tb *tb) {
  size_t k;
  (void)id;
  for (k = 0; k < qemu_plugin_tb_n_insns(tb); ++k) {
    struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(tb, k);
    qemu_plugin_register_vcpu_insn_exec_inline(insn, ADD, count_of(qemu_plugin_insn_vaddr(insn)), 1);
  }
}

static void ended(uint64_t id, void *data) {
  FILE *file = fopen(out, "w");
  int k, at;
  (void)id, (void)data;
  if (file == NULL) abort();
  for (k = 0; k < BUCKETS; ++k) {
    const struct page *page;
    for (page = buckets[k]; page != NULL; page = page->next)
      for (at = 0; at < PAGE / 2; ++at)
        if (page->counts[at])
          fprintf(file, "%" PRIx64 " %" PRIu64 "\n", page->first + 2 * (uint64_t)at, page->counts[at]);
  }
  if (fclose(file)) abort();
}

int qemu_plugin_install(uint64_t id, const void *info, int argc, char **argv) {
  (void)info;
  if (argc != 1 || strncmp(argv[0], "out=", 4) != 0) return 1;
  out = strdup(argv[0] + 4);
  qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
  qemu_plugin_register_atexit_cb(id, ended, NULL);
  return 0;
}
