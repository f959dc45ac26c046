/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loads compiled models through the system's dynamic linker.
 *
 * Linkers map a file that was cut short all the same, and reading beyond its
 * end kills the process: the headers are compared with the file's size first.
 */
#if !defined(_WIN32)
#if !defined(_DEFAULT_SOURCE)
#define _DEFAULT_SOURCE 1 /* pread under -std=c99 */
#endif
#if !defined(_FILE_OFFSET_BITS)
#define _FILE_OFFSET_BITS 64
#endif
#endif
#include "aotc_loader.h"

#include <stdlib.h>
#include <string.h>

#if defined(_WIN32)
#define WIN32_LEAN_AND_MEAN
#include <windows.h>
typedef HANDLE file_t;
typedef FARPROC symbol_t;
#else
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
typedef int file_t;
typedef void *symbol_t;
#endif

/* Copies what fits of `text`; NULL is the system's, where it is silent. */
static void tell(char *message, size_t bytes, const char *text) {
  size_t length;
  if (message == NULL || bytes == 0) return;
  if (text == NULL) text = "the system gives no reason";
  length = strlen(text);
  if (length > bytes - 1) length = bytes - 1;
  memcpy(message, text, length);
  message[length] = '\0';
}

/* A plain file that is open for reading. */
typedef struct source {
  file_t file;
  uint64_t size;
} source;

#if defined(_WIN32)

enum { PATH_UNITS = 2048 };
#define source_close(s) CloseHandle((s)->file)
#define find_symbol(handle, name) GetProcAddress((HMODULE)(handle), name)
#define close_handle(handle) FreeLibrary((HMODULE)(handle))

static void tell_system_error(char *message, size_t bytes) {
  char text[512];
  const DWORD flags =
      FORMAT_MESSAGE_FROM_SYSTEM | FORMAT_MESSAGE_IGNORE_INSERTS;
  const DWORD length = FormatMessageA(flags, NULL, GetLastError(), 0, text,
                                      (DWORD)sizeof text, NULL);
  tell(message, bytes, length > 0 ? text : NULL);
}

/* Whether a path could be turned into the system's characters. */
static int widened(const char *path, wchar_t *wide) {
  return MultiByteToWideChar(CP_UTF8, 0, path, -1, wide, PATH_UNITS) > 0;
}

static int source_open(source *s, const char *path) {
  wchar_t wide[PATH_UNITS];
  LARGE_INTEGER size;
  if (!widened(path, wide)) return 0;
  s->file = CreateFileW(wide, GENERIC_READ, FILE_SHARE_READ, NULL,
                        OPEN_EXISTING, FILE_ATTRIBUTE_NORMAL, NULL);
  if (s->file == INVALID_HANDLE_VALUE) return 0;
  s->size = GetFileSizeEx(s->file, &size) ? (uint64_t)size.QuadPart : 0;
  return 1;
}

static size_t source_read(const source *s, uint64_t at, void *to, size_t n) {
  LARGE_INTEGER offset;
  DWORD got = 0;
  offset.QuadPart = (LONGLONG)at;
  if (!SetFilePointerEx(s->file, offset, NULL, FILE_BEGIN)) return 0;
  return ReadFile(s->file, to, (DWORD)n, &got, NULL) ? got : 0;
}

static void *open_handle(const char *path) {
  wchar_t wide[PATH_UNITS];
  return widened(path, wide) ? (void *)LoadLibraryW(wide) : NULL;
}

#else

#define source_close(s) close((s)->file)
#define open_handle(path) dlopen(path, RTLD_NOW | RTLD_LOCAL)
#define find_symbol(handle, name) dlsym(handle, name)
#define close_handle(handle) dlclose(handle)
#define tell_system_error(message, bytes) tell(message, bytes, dlerror())

static int source_open(source *s, const char *path) {
  struct stat status;
  s->file = open(path, O_RDONLY | O_NONBLOCK);
  if (s->file < 0) return 0;
  if (fstat(s->file, &status) == 0 && S_ISREG(status.st_mode)) {
    s->size = (uint64_t)status.st_size;
    return 1;
  }
  source_close(s);
  return 0;
}

static size_t source_read(const source *s, uint64_t at, void *to, size_t n) {
  const ssize_t got = pread(s->file, to, n, (off_t)at);
  return got > 0 ? (size_t)got : 0;
}

#endif

/* --- what headers say of the size of their file */

enum { MAX_SLICES = 16, MAX_COMMANDS = 1 << 16 };

/* The headers of a library that begins at `base` of a file, and how they write
 * numbers: those of offsets and sizes have `width` bytes. */
typedef struct headers {
  const source *file;
  uint64_t base;
  int big; /* the highest byte comes first */
  unsigned width;
} headers;

/* A table whose rows tell where parts of the file lie, by numbers at two
 * places in a row: the rows that begin with `kind`; all of them if it is 0. */
typedef struct table {
  uint64_t start, count, stride, kind;
  unsigned offset, size;
} table;

/* The number at an offset of the file; 0 where the file ends before. */
static uint64_t number(const headers *h, uint64_t at, unsigned bytes) {
  unsigned char from[8];
  uint64_t value = 0;
  unsigned k;
  if (source_read(h->file, at, from, bytes) != bytes) return 0;
  for (k = 0; k < bytes; ++k)
    value = value << 8 | from[h->big ? k : bytes - 1 - k];
  return value;
}

static uint64_t sum(uint64_t a, uint64_t b) {
  return a + b < a ? UINT64_MAX : a + b;
}

static uint64_t larger(uint64_t a, uint64_t b) {
  return a > b ? a : b;
}

/* Where a table and the parts that it tells of end. */
static uint64_t table_end(const headers *h, const table *t) {
  uint64_t end = sum(t->start, t->stride * t->count);
  uint64_t k;
  if (end > h->file->size) return end;
  for (k = 0; k < t->count; ++k) {
    const uint64_t row = t->start + k * t->stride;
    const uint64_t offset = number(h, row + t->offset, h->width);
    const uint64_t size = number(h, row + t->size, h->width);
    /* an empty part may be said to be anywhere */
    if (size > 0 && (t->kind == 0 || number(h, row, 4) == t->kind))
      end = larger(end, sum(sum(h->base, offset), size));
  }
  return end;
}

static uint64_t elf_size(const headers *raw) {
  const unsigned width = number(raw, 4, 1) == 2 ? 8 : 4;
  const headers h = {raw->file, 0, number(raw, 5, 1) == 2, width};
  const unsigned counts = 30 + 3 * width;
  const uint64_t stride = number(&h, counts, 2);
  const uint64_t count = number(&h, counts + 2, 2);
  const uint64_t bytes = number(&h, counts + 4, 2) * number(&h, counts + 6, 2);
  const uint64_t start = number(&h, 24 + width, width);
  const uint64_t sections = number(&h, 24 + 2 * width, width);
  const table loaded = {start, count, stride, 1, width, 4 * width};
  const uint64_t end = larger(counts + 10, sum(sections, bytes));
  return larger(end, table_end(&h, &loaded));
}

static uint64_t pe_size(const headers *raw) {
  const headers h = {raw->file, 0, 0, 4};
  const uint64_t start = number(&h, 60, 4), count = number(&h, start + 6, 2);
  const uint64_t first = start + 24 + number(&h, start + 20, 2);
  const table sections = {first, count, 40, 0, 20, 16};
  const int known = number(&h, start, 4) == 0x4550;
  return larger(64, known ? table_end(&h, &sections) : start + 24);
}

/* The end of a Mach-O library that begins at `base`. */
static uint64_t mach_size(const headers *raw, uint64_t base) {
  headers h = {raw->file, base, number(raw, base, 1) == 0xfe, 4};
  const uint64_t magic = number(&h, base, 4), bytes = number(&h, base + 20, 4);
  const unsigned width = magic == 0xfeedfacf ? 8 : 4;
  const unsigned kind = width == 8 ? 0x19 : 0x1;
  const unsigned offset = 24 + 2 * width, size = offset + width;
  uint64_t at = base + 24 + width, step;
  const uint64_t last = at + bytes;
  uint64_t end = last;
  if ((magic | 1) != 0xfeedfacf || bytes > MAX_COMMANDS) return 0;
  h.width = width;
  for (; at < last && (step = number(&h, at + 4, 4)) >= 8; at += step) {
    const table segment = {at, 1, 8, kind, offset, size};
    end = larger(end, table_end(&h, &segment));
  }
  return end;
}

/* Libraries for several architectures in one file. */
static uint64_t fat_size(const headers *raw, unsigned w) {
  const headers h = {raw->file, 0, 1, w};
  const table slices = {8, number(&h, 4, 4), 8 + 3 * w, 0, 8, 8 + w};
  uint64_t k, end;
  if (slices.count > MAX_SLICES) return 0;
  end = table_end(&h, &slices);
  for (k = 0; k < slices.count; ++k)
    end = larger(end, mach_size(&h, number(&h, 16 + k * slices.stride, w)));
  return end;
}

/* How many bytes the file has at least, as its headers say; 0 where they say
 * nothing, and the linker will refuse it. */
static uint64_t stated_size(const source *file) {
  const headers h = {file, 0, 1, 4};
  switch (number(&h, 0, 4)) {
  case 0x7f454c46: return elf_size(&h);
  case 0xcafebabe: return fat_size(&h, 4);
  case 0xcafebabf: return fat_size(&h, 8);
  }
  return number(&h, 0, 2) == 0x4d5a ? pe_size(&h) : mach_size(&h, 0);
}

/* Whether the file is as long as its headers say.  Where it cannot be read,
 * the linker tells why; names without a folder are for it to search. */
static int is_whole(const char *path) {
  source s;
  int whole;
  if (strpbrk(path, "/\\") == NULL || !source_open(&s, path)) return 1;
  whole = stated_size(&s) <= s.size;
  source_close(&s);
  return whole;
}

/* Return `status`; write `text` to `message`, or the system's text for errno if
 * `text` is NULL. */
static int failed(int status, const char *text, char *message, size_t bytes) {
  if (text == NULL)
    tell_system_error(message, bytes);
  else
    tell(message, bytes, text);
  return status;
}

/* Whether a library has sizes, as a model of version 4 or 5 must. */
static int find_sizes(aotc_library *library) {
  const symbol_t symbol = find_symbol(library->handle, AOTC_SIZES_SYMBOL);
  aotc_sizes_fn entry;
  if (symbol == NULL) return 0;
  memcpy(&entry, &symbol, sizeof entry); /* ISO C has no such cast */
  library->sizes = entry();
  return library->sizes != NULL;
}

/* The model behind an open handle: AOTC_OK, AOTC_ERROR_SYMBOL or _ABI. */
static int find_model(aotc_library *library, char *message, size_t bytes) {
  const symbol_t symbol = find_symbol(library->handle, AOTC_ENTRY_SYMBOL);
  aotc_entry_fn entry;
  int status = AOTC_ERROR_ABI;
  if (symbol == NULL) return failed(AOTC_ERROR_SYMBOL, NULL, message, bytes);
  memcpy(&entry, &symbol, sizeof entry); /* ISO C has no such cast */
  library->model = entry();
  /* the version comes first: another one says nothing about the rest */
  if (library->model == NULL)
    status = AOTC_ERROR_SYMBOL;
  else if (library->model->abi_version == AOTC_ABI_VERSION ||
           (library->model->abi_version - AOTC_ABI_VERSION_SIZES < 2u &&
            find_sizes(library)))
    return AOTC_OK;
  return failed(status, aotc_status_message(status), message, bytes);
}

/* AOTC_OK where the processor has what the model needs. */
static int choose_isa(aotc_library *library, char *message, size_t bytes) {
  const aotc_model *const model = library->model;
  const char *isa = model->num_isas > 1 ? getenv("AOTC_ISA") : NULL;
  int chosen, status;
  if (isa != NULL && *isa == '\0') isa = NULL;
  status = aotc_model_check(model, isa, &chosen, message, bytes);
  if (status == AOTC_OK && isa != NULL) library->isa = model->isas[chosen].name;
  return status;
}

static const aotc_library none = {NULL, NULL, NULL, NULL};

int aotc_library_open(aotc_library *library, const char *path, char *message,
                      size_t message_bytes) {
  int status;
  tell(message, message_bytes, "");
  if (library != NULL) *library = none;
  /* dlopen(NULL) would open the program itself */
  if (library == NULL || path == NULL)
    return failed(AOTC_ERROR_NULL_ARGUMENT,
                  "the library or its path is missing", message, message_bytes);
  if (!is_whole(path))
    return failed(AOTC_ERROR_OPEN, "the file was cut short", message,
                  message_bytes);
  library->handle = open_handle(path);
  if (library->handle == NULL)
    return failed(AOTC_ERROR_OPEN, NULL, message, message_bytes);
  status = find_model(library, message, message_bytes);
  if (status == AOTC_OK) status = choose_isa(library, message, message_bytes);
  if (status != AOTC_OK) aotc_library_close(library);
  return status;
}

int aotc_library_run(const aotc_library *library, const void *const *inputs,
                     void *const *outputs, void *workspace,
                     const aotc_run_options *options) {
  aotc_run_options made;
  if (library == NULL || library->model == NULL)
    return AOTC_ERROR_NULL_ARGUMENT;
  if (library->isa != NULL &&
      (options == NULL || options->size >= sizeof(options->size))) {
    memset(&made, 0, sizeof made);
    if (options != NULL)
      memcpy(&made, options,
             options->size < sizeof made ? options->size : sizeof made);
    made.size = sizeof made;
    if (made.isa == NULL) made.isa = library->isa;
    options = &made;
  }
  return library->model->run(inputs, outputs, workspace, options);
}

void aotc_library_close(aotc_library *library) {
  if (library == NULL || library->handle == NULL) return;
  close_handle(library->handle);
  *library = none;
}
