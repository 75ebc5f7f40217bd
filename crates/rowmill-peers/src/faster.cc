// FASTER as plain functions over rows of one size. A call handles many keys, and one device read gets a whole
// row.
//
// FASTER's own faster-c.cc is not used: it takes one key per call, allocates memory for each, and reads a row
// from the device in two steps.

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/faster.h"
#include "device/file_system_disk.h"

namespace {

using namespace FASTER::core;

constexpr uint64_t kSegmentBytes = uint64_t{1} << 30;
// Number of operations between two refreshes, which close pages and complete reads.
constexpr size_t kRefreshEvery = 64;

class Key {
 public:
  explicit Key(uint64_t key) : key_{key} {}
  static constexpr uint32_t size() { return sizeof(Key); }
  KeyHash GetHash() const { return KeyHash{Utility::GetHashCode(key_)}; }
  bool operator==(const Key& other) const { return key_ == other.key_; }
  bool operator!=(const Key& other) const { return key_ != other.key_; }

 private:
  uint64_t key_;
};

// A header, followed by the bytes of the row.
class Row {
 public:
  // A row that was read ahead and does not exist is stored as a header that says so.
  void Initialize(uint32_t bytes, bool present) {
    sequence_.store(0, std::memory_order_relaxed);
    bytes_ = bytes;
    present_ = present;
  }
  uint32_t size() const { return sizeof(Row) + bytes_; }
  uint32_t bytes() const { return bytes_; }
  bool present() const { return present_; }
  void set_present() { present_ = true; }
  const uint8_t* data() const { return reinterpret_cast<const uint8_t*>(this + 1); }
  uint8_t* data() { return reinterpret_cast<uint8_t*>(this + 1); }

  // The number of changes; odd during a change.
  uint32_t sequence() const { return sequence_.load(std::memory_order_acquire); }
  void Lock() {
    uint32_t even = sequence_.load(std::memory_order_relaxed) & ~1u;
    while (!sequence_.compare_exchange_weak(even, even + 1, std::memory_order_acquire)) {
      even &= ~1u;
      std::this_thread::yield();
    }
    std::atomic_thread_fence(std::memory_order_release);
  }
  void Unlock() { sequence_.fetch_add(1, std::memory_order_release); }

 private:
  std::atomic<uint32_t> sequence_;
  uint32_t bytes_ : 31;
  uint32_t present_ : 1;
};
static_assert(sizeof(Row) == 8, "a row begins where its floats are aligned");

using Disk = FASTER::device::FileSystemDisk<FASTER::environment::QueueIoHandler, kSegmentBytes>;
using Store = FasterKv<Key, Row, Disk>;

// Bytes of a device read: the largest record of this process.
std::atomic<uint32_t> record_bytes{0};

struct Calls {
  std::atomic<size_t> missing{0};
  std::atomic<size_t> failed{0};
};

class Context : public IAsyncContext {
 public:
  typedef Key key_t;
  typedef Row value_t;

  Context(uint64_t key, Calls* calls) : calls{calls}, key_{key} {}
  const Key& key() const { return key_; }

  Calls* calls;

 private:
  Key key_;
};

class Read : public Context {
 public:
  Read(uint64_t key, Calls* calls, uint8_t* row) : Context{key, calls}, row_{row} {}

  void Get(const Row& row) {
    if (row.present()) {
      std::memcpy(row_, row.data(), row.bytes());
    } else {
      ++calls->missing;
    }
  }
  void GetAtomic(const Row& row) {
    bool present;
    uint32_t before;
    do {
      while ((before = row.sequence()) & 1u) {
        std::this_thread::yield();
      }
      present = row.present();
      std::memcpy(row_, row.data(), row.bytes());
      std::atomic_thread_fence(std::memory_order_acquire);
    } while (row.sequence() != before);
    if (!present) {
      ++calls->missing;
    }
  }

 protected:
  Status DeepCopy_Internal(IAsyncContext*& copy) override { return IAsyncContext::DeepCopy_Internal(*this, copy); }

 private:
  uint8_t* row_;
};

class Upsert : public Context {
 public:
  Upsert(uint64_t key, Calls* calls, const uint8_t* row, uint32_t bytes)
    : Context{key, calls}, row_{row}, bytes_{bytes} {}

  uint32_t value_size() const { return sizeof(Row) + bytes_; }
  void Put(Row& row) {
    row.Initialize(bytes_, true);
    std::memcpy(row.data(), row_, bytes_);
  }
  bool PutAtomic(Row& row) {
    row.Lock();
    row.set_present();
    std::memcpy(row.data(), row_, bytes_);
    row.Unlock();
    return true;
  }

 protected:
  Status DeepCopy_Internal(IAsyncContext*& copy) override { return IAsyncContext::DeepCopy_Internal(*this, copy); }

 private:
  const uint8_t* row_;
  uint32_t bytes_;
};

typedef void (*Change)(void* context, size_t position, uint8_t* row);

// Without a change, a row is copied to the tail of the log if its page does not change in place.
class Rmw : public Context {
 public:
  Rmw(uint64_t key, Calls* calls, uint32_t bytes, size_t position, void* context, Change change)
    : Context{key, calls}, bytes_{bytes}, position_{position}, context_{context}, change_{change} {}

  uint32_t value_size() const { return sizeof(Row) + bytes_; }
  uint32_t value_size(const Row& old) const { return old.size(); }
  void RmwInitial(Row& row) {
    row.Initialize(bytes_, false);
    std::memset(row.data(), 0, bytes_);
    ++calls->missing;
  }
  void RmwCopy(const Row& old, Row& row) {
    row.Initialize(bytes_, old.present());
    std::memcpy(row.data(), old.data(), bytes_);
    Apply(row);
  }
  bool RmwAtomic(Row& row) {
    row.Lock();
    Apply(row);
    row.Unlock();
    return true;
  }

 protected:
  Status DeepCopy_Internal(IAsyncContext*& copy) override { return IAsyncContext::DeepCopy_Internal(*this, copy); }

 private:
  void Apply(Row& row) {
    if (!row.present()) {
      ++calls->missing;
    } else if (change_ != nullptr) {
      change_(context_, position_, row.data());
    }
  }

  uint32_t bytes_;
  size_t position_;
  void* context_;
  Change change_;
};

template <class C>
void Complete(IAsyncContext* context, Status result) {
  CallbackContext<C> call{context};
  if (result == Status::NotFound) {
    ++call->calls->missing;
  } else if (result != Status::Ok) {
    ++call->calls->failed;
  }
}

// Starts and ends this thread's session in the epochs of a store.
class Session {
 public:
  explicit Session(Store& store) : store_{store} { store_.StartSession(); }
  ~Session() { store_.StopSession(); }

 private:
  Store& store_;
};

}  // namespace

namespace FASTER {
namespace core {

// By default, this is only the size of a row's header, so the rest takes a second read.
template <>
inline uint32_t FasterKv<Key, Row, Disk>::MinIoRequestSize() const {
  return record_bytes.load(std::memory_order_relaxed);
}

}  // namespace core
}  // namespace FASTER

struct RowmillFaster {
  std::string folder;
  uint32_t row_bytes;
  std::unique_ptr<Store> store;
  // The end of the log when the store was opened.
  uint64_t opened_at;
};

namespace {

// Whether this thread knows that its checkpoint is written to the files.
thread_local bool checkpointed;

std::string TokenFile(const std::string& folder) { return folder + "/token"; }

// Calls `each` for every key, in a session, and waits for all device reads.
template <class F>
int ForEach(RowmillFaster* faster, size_t count, size_t* missing, F each) {
  Calls calls;
  try {
    Session session{*faster->store};
    for (size_t at = 0; at < count; ++at) {
      Status status = each(*faster->store, calls, at);
      if (status == Status::NotFound) {
        ++calls.missing;
      } else if (status != Status::Ok && status != Status::Pending) {
        ++calls.failed;
      }
      if (at % kRefreshEvery == kRefreshEvery - 1) {
        faster->store->CompletePending(false);
      }
    }
    faster->store->CompletePending(true);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "FASTER: %s\n", error.what());
    return -1;
  }
  *missing = calls.missing;
  return calls.failed == 0 ? 0 : -1;
}

}  // namespace

extern "C" {

// Opens a store with `buckets` hash buckets of a cache line and `log_bytes` of log in memory, of which the
// fraction `in_place` changes in place. Opens at the folder's checkpoint, if there is one. On failure,
// returns null and prints the reason to stderr.
RowmillFaster* rowmill_faster_open(const char* folder, uint64_t buckets, uint64_t log_bytes, double in_place,
                                   uint32_t row_bytes) {
  try {
    auto faster = std::make_unique<RowmillFaster>();
    faster->folder = folder;
    faster->row_bytes = row_bytes;
    uint32_t mine = Record<Key, Row>::size(Key::size(), sizeof(Row) + row_bytes);
    uint32_t most = record_bytes.load();
    while (most < mine && !record_bytes.compare_exchange_weak(most, mine)) {
    }
    faster->store = std::make_unique<Store>(buckets, log_bytes, folder, in_place);
    std::ifstream file{TokenFile(folder)};
    std::string token;
    if (file >> token) {
      Guid guid = Guid::Parse(token);
      uint32_t version;
      std::vector<Guid> sessions;
      Status status = faster->store->Recover(guid, guid, version, sessions);
      if (status != Status::Ok) {
        std::fprintf(stderr, "FASTER: %s cannot be recovered: status %d\n", folder, static_cast<int>(status));
        return nullptr;
      }
    }
    faster->opened_at = faster->store->Size();
    return faster.release();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "FASTER: %s\n", error.what());
    return nullptr;
  }
}

uint64_t rowmill_faster_page_bytes() { return Store::hlog_t::kPageSize; }

// Makes a checkpoint if anything has changed, then closes the store.
int rowmill_faster_close(RowmillFaster* faster) {
  std::unique_ptr<RowmillFaster> owned{faster};
  try {
    // A checkpoint without changes since the last one would wait forever.
    if (faster->store->Size() == faster->opened_at) {
      return 0;
    }
    Guid token;
    {
      Session session{*faster->store};
      checkpointed = false;
      auto on_index = [](Status) {};
      auto on_log = [](Status, uint64_t) { checkpointed = true; };
      if (!faster->store->Checkpoint(on_index, on_log, token)) {
        return -1;
      }
      while (!checkpointed) {
        faster->store->CompletePending(false);
      }
    }
    std::ofstream file{TokenFile(faster->folder)};
    file << token.ToString() << "\n";
    file.close();
    return file ? 0 : -1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "FASTER: %s\n", error.what());
    return -1;
  }
}

int rowmill_faster_get(RowmillFaster* faster, const uint64_t* keys, size_t count, uint8_t* rows, size_t* missing) {
  return ForEach(faster, count, missing, [=](Store& store, Calls& calls, size_t at) {
    Read context{keys[at], &calls, rows + at * faster->row_bytes};
    return store.Read(context, Complete<Read>, 1);
  });
}

int rowmill_faster_put(RowmillFaster* faster, const uint64_t* keys, size_t count, const uint8_t* rows) {
  size_t missing;
  return ForEach(faster, count, &missing, [=](Store& store, Calls& calls, size_t at) {
    Upsert context{keys[at], &calls, rows + at * faster->row_bytes, faster->row_bytes};
    return store.Upsert(context, Complete<Upsert>, 1);
  });
}

// Calls `change` on every row, in place or on a copy. Without `change`, only brings rows into memory.
int rowmill_faster_rmw(RowmillFaster* faster, const uint64_t* keys, size_t count, void* argument, Change change,
                       size_t* missing) {
  return ForEach(faster, count, missing, [=](Store& store, Calls& calls, size_t at) {
    Rmw context{keys[at], &calls, faster->row_bytes, at, argument, change};
    return store.Rmw(context, Complete<Rmw>, 1);
  });
}

}  // extern "C"
