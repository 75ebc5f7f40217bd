// WiredTiger as plain functions: its own interface is structs of function pointers.
//
// Every function returns 0 or an error code for rowmill_wt_message.

#include <malloc.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <wiredtiger.h>

// A session with a cursor over the only table. Used by one thread at a time.
struct session {
  WT_SESSION *session;
  WT_CURSOR *cursor;
};

int rowmill_wt_open(const char *folder, const char *config, const char *table, WT_CONNECTION **connection) {
  // Eviction threads free memory that other threads allocated. With one malloc arena per thread, the process
  // grows by half as much again.
  mallopt(M_ARENA_MAX, 1);
  int code = wiredtiger_open(folder, NULL, config, connection);
  if (code != 0) {
    return code;
  }
  WT_SESSION *session;
  code = (*connection)->open_session(*connection, NULL, NULL, &session);
  if (code == 0) {
    code = session->create(session, "table:rows", table);
    int closed = session->close(session, NULL);
    code = code != 0 ? code : closed;
  }
  if (code != 0) {
    (*connection)->close(*connection, NULL);
  }
  return code;
}

// Also closes all sessions. Afterwards, all rows are in the files.
int rowmill_wt_close(WT_CONNECTION *connection) {
  return connection->close(connection, NULL);
}

int rowmill_wt_session(WT_CONNECTION *connection, struct session **out) {
  struct session *made = malloc(sizeof *made);
  if (made == NULL) {
    return WT_ERROR;
  }
  int code = connection->open_session(connection, NULL, NULL, &made->session);
  if (code == 0) {
    code = made->session->open_cursor(made->session, "table:rows", NULL, "overwrite=true", &made->cursor);
    if (code != 0) {
      made->session->close(made->session, NULL);
    }
  }
  if (code != 0) {
    free(made);
    return code;
  }
  *out = made;
  return 0;
}

// Frees the caller's struct; the session itself is closed with its connection.
void rowmill_wt_forget(struct session *session) {
  free(session);
}

int rowmill_wt_get(struct session *session, const uint64_t *keys, size_t count, uint8_t *rows, size_t row_bytes,
                   size_t *missing) {
  WT_CURSOR *cursor = session->cursor;
  int code = 0;
  for (size_t at = 0; at < count && code == 0; at++) {
    cursor->set_key(cursor, keys[at]);
    code = cursor->search(cursor);
    if (code == WT_NOTFOUND) {
      ++*missing;
      code = 0;
    } else if (code == 0) {
      WT_ITEM value;
      code = cursor->get_value(cursor, &value);
      if (code == 0 && value.size != row_bytes) {
        code = WT_ERROR;
      }
      if (code == 0) {
        memcpy(rows + at * row_bytes, value.data, row_bytes);
      }
    }
  }
  int reset = cursor->reset(cursor);
  return code != 0 ? code : reset;
}

int rowmill_wt_put(struct session *session, const uint64_t *keys, size_t count, const uint8_t *rows,
                   size_t row_bytes) {
  WT_CURSOR *cursor = session->cursor;
  int code = 0;
  for (size_t at = 0; at < count && code == 0; at++) {
    WT_ITEM value = {.data = rows + at * row_bytes, .size = row_bytes};
    cursor->set_key(cursor, keys[at]);
    cursor->set_value(cursor, &value);
    code = cursor->insert(cursor);
  }
  int reset = cursor->reset(cursor);
  return code != 0 ? code : reset;
}

int rowmill_wt_checkpoint(struct session *session) {
  return session->session->checkpoint(session->session, NULL);
}

const char *rowmill_wt_message(int code) {
  return wiredtiger_strerror(code);
}
