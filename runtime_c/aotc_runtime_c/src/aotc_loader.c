/* SPDX-License-Identifier: Apache-2.0 */
/* Loads compiled models through the system's dynamic linker. */
#include "aotc_loader.h"

#include <stdlib.h>
#include <string.h>

#if defined(_WIN32)
#define WIN32_LEAN_AND_MEAN
#include <windows.h>
#else
#include <dlfcn.h>
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

#if defined(_WIN32)

enum { PATH_UNITS = 2048 };

static void tell_system_error(char *message, size_t bytes) {
  char text[512];
  const DWORD flags =
      FORMAT_MESSAGE_FROM_SYSTEM | FORMAT_MESSAGE_IGNORE_INSERTS;
  const DWORD length = FormatMessageA(flags, NULL, GetLastError(), 0, text,
                                      (DWORD)sizeof text, NULL);
  tell(message, bytes, length > 0 ? text : "the system gives no reason");
}

static void *open_handle(const char *path, char *message, size_t bytes) {
  wchar_t wide[PATH_UNITS];
  HMODULE module = NULL;
  if (MultiByteToWideChar(CP_UTF8, 0, path, -1, wide, PATH_UNITS) > 0)
    module = LoadLibraryW(wide);
  if (module == NULL) tell_system_error(message, bytes);
  return (void *)module;
}

static aotc_entry_fn find_entry(void *handle, char *message, size_t bytes) {
  const FARPROC symbol = GetProcAddress((HMODULE)handle, AOTC_ENTRY_SYMBOL);
  aotc_entry_fn entry = NULL;
  if (symbol == NULL)
    tell_system_error(message, bytes);
  else
    memcpy(&entry, &symbol, sizeof entry);
  return entry;
}

static void close_handle(void *handle) {
  FreeLibrary((HMODULE)handle);
}

#else

static void tell_system_error(char *message, size_t bytes) {
  const char *text = dlerror();
  tell(message, bytes, text != NULL ? text : "the system gives no reason");
}

static void *open_handle(const char *path, char *message, size_t bytes) {
  void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (handle == NULL) tell_system_error(message, bytes);
  return handle;
}

static aotc_entry_fn find_entry(void *handle, char *message, size_t bytes) {
  void *const symbol = dlsym(handle, AOTC_ENTRY_SYMBOL);
  aotc_entry_fn entry = NULL;
  if (symbol == NULL)
    tell_system_error(message, bytes);
  else /* ISO C has no cast from data pointers to functions */
    memcpy(&entry, &symbol, sizeof entry);
  return entry;
}

static void close_handle(void *handle) {
  dlclose(handle);
}

#endif

/* The model behind an open handle: AOTC_OK, AOTC_ERROR_SYMBOL or _ABI. */
static int find_model(void *handle, const aotc_model **model, char *message,
                      size_t bytes) {
  const aotc_entry_fn entry = find_entry(handle, message, bytes);
  const aotc_model *found;
  if (entry == NULL) return AOTC_ERROR_SYMBOL;
  found = entry();
  if (found == NULL) {
    tell(message, bytes, aotc_status_message(AOTC_ERROR_SYMBOL));
    return AOTC_ERROR_SYMBOL;
  }
  /* the version comes first: another one says nothing about the rest */
  if (found->abi_version != AOTC_ABI_VERSION) {
    tell(message, bytes, aotc_status_message(AOTC_ERROR_ABI));
    return AOTC_ERROR_ABI;
  }
  *model = found;
  return AOTC_OK;
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

int aotc_library_open(aotc_library *library, const char *path, char *message,
                      size_t message_bytes) {
  int status;
  tell(message, message_bytes, "");
  if (library != NULL) {
    library->model = NULL;
    library->handle = NULL;
    library->isa = NULL;
  }
  /* dlopen(NULL) would open the program itself */
  if (library == NULL || path == NULL) {
    tell(message, message_bytes, "the library or its path is missing");
    return AOTC_ERROR_NULL_ARGUMENT;
  }
  library->handle = open_handle(path, message, message_bytes);
  if (library->handle == NULL) return AOTC_ERROR_OPEN;
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
  library->handle = NULL;
  library->model = NULL;
  library->isa = NULL;
}
