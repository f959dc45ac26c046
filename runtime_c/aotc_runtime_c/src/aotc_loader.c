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

/* Copies what fits of `text`, zero-terminated. */
static void tell(char *message, size_t bytes, const char *text) {
  size_t length;
  if (message == NULL || bytes == 0) return;
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
  tell(message, bytes, length > 0 ? text : "the system gives no reason");
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

static void tell_system_error(char *message, size_t bytes) {
  const char *text = dlerror();
  tell(message, bytes, text != NULL ? text : "the system gives no reason");
}

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

/* Where rows of a table hold the extent of a part of the file: numbers of
 * `width` bytes. */
typedef struct extents {
  int big; /* bytes in this order */
  int width;
  int offset;
  int size;
} extents;

static uint64_t number(const unsigned char *from, int bytes, int big) {
  uint64_t value = 0;
  int k;
  for (k = 0; k < bytes; ++k)
    value = value << 8 | from[big ? k : bytes - 1 - k];
  return value;
}

static uint64_t sum(uint64_t a, uint64_t b) {
  return a + b < a ? UINT64_MAX : a + b;
}

static uint64_t larger(uint64_t a, uint64_t b) {
  return a > b ? a : b;
}

/* Reads `n` bytes of a header; 0 where the file ends before. */
static int header(const source *s, uint64_t at, unsigned char *to, size_t n) {
  return at < s->size && s->size - at >= n && source_read(s, at, to, n) == n;
}

/* The end of a part; 0 of an empty one, wherever that is said to be. */
static uint64_t extent(const unsigned char *row, const extents *e) {
  const uint64_t size = number(row + e->size, e->width, e->big);
  return size == 0 ? 0 : sum(number(row + e->offset, e->width, e->big), size);
}

static uint64_t elf_size(const source *s, const unsigned char *head) {
  const int wide = head[4] == 2;
  const extents rows = {head[5] == 2, wide ? 8 : 4, wide ? 8 : 4,
                        wide ? 32 : 16};
  const unsigned char *const counts = head + (wide ? 54 : 42);
  const unsigned char *const tables = head + (wide ? 32 : 28);
  const uint64_t segments = number(tables, rows.width, rows.big);
  const uint64_t sections = number(tables + rows.width, rows.width, rows.big);
  const uint64_t stride = number(counts, 2, rows.big);
  const uint64_t count = number(counts + 2, 2, rows.big);
  unsigned char row[56];
  uint64_t k;
  uint64_t end =
      number(counts + 4, 2, rows.big) * number(counts + 6, 2, rows.big);
  end = larger(sum(sections, end), sum(segments, stride * count));
  if (end > s->size || stride != (wide ? 56u : 32u)) return end;
  for (k = 0; k < count; ++k) {
    if (!header(s, segments + k * stride, row, (size_t)stride)) return end;
    if (number(row, 4, rows.big) == 1) /* is loaded */
      end = larger(end, extent(row, &rows));
  }
  return end;
}

static uint64_t pe_size(const source *s, const unsigned char *head) {
  static const extents rows = {0, 4, 20, 16};
  const uint64_t start = number(head + 60, 4, 0);
  unsigned char row[40];
  uint64_t at, count, k, end;
  if (!header(s, start, row, 24)) return start + 24;
  if (memcmp(row, "PE\0\0", 4) != 0) return 0;
  at = start + 24 + number(row + 20, 2, 0);
  count = number(row + 6, 2, 0);
  end = at + count * sizeof row;
  for (k = 0; k < count; ++k) {
    if (!header(s, at + k * sizeof row, row, sizeof row)) return end;
    end = larger(end, extent(row, &rows));
  }
  return end;
}

/* The end of a Mach-O library that begins at `base`. */
static uint64_t mach_size(const source *s, uint64_t base) {
  unsigned char row[56] = {0};
  const int known = header(s, base, row, 28);
  const int big = row[0] == 0xfe;
  const int wide = row[big ? 3 : 0] == 0xcf;
  const uint64_t magic = number(row, 4, big);
  const extents rows = {big, wide ? 8 : 4, wide ? 40 : 32, wide ? 48 : 36};
  uint64_t at = base + (wide ? 32 : 28);
  const uint64_t bytes = number(row + 20, 4, big);
  const uint64_t last = at + bytes;
  uint64_t end = last;
  if (!known) return sum(base, 28);
  if ((magic != 0xfeedface && magic != 0xfeedfacf) || bytes > MAX_COMMANDS)
    return 0;
  while (at < last && header(s, at, row, 8)) {
    const uint64_t kind = number(row, 4, big);
    const uint64_t step = number(row + 4, 4, big);
    if (kind == (wide ? 0x19u : 0x1u) && header(s, at, row, wide ? 56 : 40))
      end = larger(end, sum(base, extent(row, &rows)));
    if (step < 8) break;
    at += step;
  }
  return end;
}

/* Libraries for several architectures in one file. */
static uint64_t fat_size(const source *s, const unsigned char *head) {
  const int wide = head[3] == 0xbf;
  const extents rows = {1, wide ? 8 : 4, 8, wide ? 16 : 12};
  const size_t stride = wide ? 32 : 20;
  const uint64_t count = number(head + 4, 4, 1);
  unsigned char row[32];
  uint64_t k, end;
  if (count > MAX_SLICES) return 0;
  end = 8 + stride * count;
  for (k = 0; k < count; ++k) {
    if (!header(s, 8 + k * stride, row, stride)) return end;
    end = larger(end, extent(row, &rows));
    end = larger(end, mach_size(s, number(row + 8, rows.width, 1)));
  }
  return end;
}

/* How many bytes the file has at least, as its headers say; 0 where they say
 * nothing, and the linker will refuse it. */
static uint64_t stated_size(const source *s) {
  unsigned char head[64] = {0};
  const size_t got = source_read(s, 0, head, sizeof head);
  if (memcmp(head, "\177ELF", 4) == 0)
    return got < (head[4] == 2 ? 64u : 52u) ? 64 : elf_size(s, head);
  if (head[0] == 'M' && head[1] == 'Z')
    return got < sizeof head ? sizeof head : pe_size(s, head);
  if (memcmp(head, "\312\376\272", 3) == 0 && (head[3] & 0xfe) == 0xbe)
    return fat_size(s, head);
  return memcmp(head, "\376\355\372", 3) == 0 ||
                 memcmp(head + 1, "\372\355\376", 3) == 0
             ? mach_size(s, 0)
             : 0;
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

/* The model behind an open handle: AOTC_OK, AOTC_ERROR_SYMBOL or _ABI. */
static int find_model(void *handle, const aotc_model **model, char *message,
                      size_t bytes) {
  const symbol_t symbol = find_symbol(handle, AOTC_ENTRY_SYMBOL);
  aotc_entry_fn entry;
  int status = AOTC_ERROR_SYMBOL;
  if (symbol == NULL) {
    tell_system_error(message, bytes);
    return status;
  }
  memcpy(&entry, &symbol, sizeof entry); /* ISO C has no such cast */
  *model = entry();
  /* the version comes first: another one says nothing about the rest */
  if (*model != NULL)
    status =
        (*model)->abi_version == AOTC_ABI_VERSION ? AOTC_OK : AOTC_ERROR_ABI;
  if (status != AOTC_OK) tell(message, bytes, aotc_status_message(status));
  return status;
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

/* The options of a run that takes an instruction set of the library's. */
static void with_isa(aotc_run_options *made, const aotc_run_options *given,
                     const char *isa) {
  const size_t known = given == NULL ? 0 : given->size;
  memset(made, 0, sizeof *made);
  if (known > 0)
    memcpy(made, given, known < sizeof *made ? known : sizeof *made);
  made->size = sizeof *made;
  if (made->isa == NULL) made->isa = isa;
}

static const aotc_library none = {NULL, NULL, NULL};

static int failed(int status, const char *text, char *message, size_t bytes) {
  tell(message, bytes, text);
  return status;
}

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
  if (library->handle == NULL) {
    tell_system_error(message, message_bytes);
    return AOTC_ERROR_OPEN;
  }
  status = find_model(library->handle, &library->model, message, message_bytes);
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
    with_isa(&made, options, library->isa);
    options = &made;
  }
  return library->model->run(inputs, outputs, workspace, options);
}

void aotc_library_close(aotc_library *library) {
  if (library == NULL || library->handle == NULL) return;
  close_handle(library->handle);
  *library = none;
}
