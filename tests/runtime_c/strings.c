/* SPDX-License-Identifier: Apache-2.0 */
/* Reads records of a 32-bit length and bytes; prints for each the status of
 * writing it to a slot of 8 bytes, and what the slot then holds, in hexadecimal
 * digits.  A second string before it shows that nothing is written on failure. */
#include "aotc_strings.h"

#include <stdio.h>
#include <stdlib.h>

enum { SLOT = 8 };

int main(void) {
  uint32_t length;
  while (fread(&length, sizeof length, 1, stdin) == 1) {
    /* exactly as long as the text, so that reads beyond it are found */
    char *text = (char *)malloc(length ? length : 1);
    uint8_t *slots = (uint8_t *)malloc(2 * SLOT);
    aotc_string strings[2], read;
    size_t wrong = 9, k;
    int status;
    if (text == NULL || slots == NULL) return 1;
    if (fread(text, 1, length, stdin) != length) return 1;
    memset(slots, 'u', 2 * SLOT);
    strings[0].text = "first";
    strings[0].bytes = 5;
    strings[1].text = length ? text : NULL;
    strings[1].bytes = length;
    status = aotc_strings_write(slots, SLOT, strings, 2, &wrong);
    printf("%d %d ", status, (int)wrong);
    if (status != 0) {
      for (k = 0; k < 2 * SLOT; ++k)
        if (slots[k] != 'u') return 2;
    } else {
      read = aotc_strings_read(slots, SLOT, 1);
      for (k = 0; k < read.bytes; ++k)
        printf("%02x", (unsigned)(unsigned char)read.text[k]);
    }
    printf("\n");
    free(text);
    free(slots);
  }
  return aotc_strings_write(NULL, SLOT, NULL, 0, NULL) != 0 ||
         aotc_strings_write(NULL, SLOT, NULL, 1, NULL) != 1;
}
