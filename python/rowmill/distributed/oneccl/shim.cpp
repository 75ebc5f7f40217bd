// A C interface to oneCCL's C++ API, for ctypes. It uses no symbol of torch or Python, so one build serves all versions.
//
// Each group has one thread, which runs its collectives in the order of submission: over its OFI transport, oneCCL 2022.1
// returns from a collective only when it is done. The caller waits for the work with a deadline, and gets the message of
// an exception that oneCCL threw. A collective that hangs because a peer is gone blocks the thread forever; closing such a
// group leaks the thread.
//
// Each collective is one call of libccl, counted when it has returned.

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <oneapi/ccl.hpp>

namespace {

// Must match library.py.
enum Operation { CONNECT, ALLREDUCE, BROADCAST, ALLGATHER, REDUCE_SCATTER, ALL_TO_ALL, BARRIER, OPERATIONS };

std::array<std::atomic<uint64_t>, OPERATIONS> calls{};

// How long closing a group waits for the collectives that were submitted.
constexpr std::chrono::seconds CLOSING{5};

std::string message_of(std::exception_ptr error) {
    try {
        std::rethrow_exception(error);
    } catch (const std::exception& known) {
        return known.what();
    } catch (...) {
        return "an unknown exception";
    }
}

// A submitted operation: pending, done or failed.
class Work {
  public:
    void finish(std::string error) {
        const std::lock_guard lock(mutex);
        message = std::move(error);
        done = true;
        changed.notify_all();
    }

    // 1: done; 0: still pending after `seconds`; -1: failed.
    int wait(double seconds) {
        std::unique_lock lock(mutex);
        if (!changed.wait_for(lock, std::chrono::duration<double>(seconds), [this] { return done; })) return 0;
        return message.empty() ? 1 : -1;
    }

    // The message of a failed operation. It is constant after wait() returned -1.
    const char* error() const { return message.c_str(); }

  private:
    std::mutex mutex;
    std::condition_variable changed;
    bool done = false;
    std::string message;
};

using Shared = std::shared_ptr<Work>;

// One member of a communicator, with the thread that runs its collectives.
class Group {
  public:
    using Start = std::function<ccl::event(const ccl::communicator&)>;
    using Connect = std::function<ccl::communicator()>;

    explicit Group(Connect connect) : connecting(std::make_shared<Work>()), connect(std::move(connect)) {}

    void run() {
        run_tasks();
        const std::lock_guard lock(mutex);
        ended = true;
        changed.notify_all();
    }

    Shared submit(Operation operation, Start start) {
        auto work = std::make_shared<Work>();
        const std::lock_guard lock(mutex);
        tasks.push_back({operation, std::move(start), work});
        changed.notify_all();
        return work;
    }

    void close() {
        std::unique_lock lock(mutex);
        closing = true;
        changed.notify_all();
        changed.wait_for(lock, CLOSING, [this] { return ended; });
    }

    const Shared connecting;

  private:
    struct Task {
        Operation operation;
        Start start;
        Shared work;
    };

    void run_tasks() {
        std::unique_ptr<ccl::communicator> comm;
        perform(CONNECT, connecting, [&] { comm = std::make_unique<ccl::communicator>(connect()); });
        for (;;) {
            Task task;
            {
                std::unique_lock lock(mutex);
                changed.wait(lock, [this] { return closing || !tasks.empty(); });
                if (tasks.empty()) return;
                task = std::move(tasks.front());
                tasks.pop_front();
            }
            perform(task.operation, task.work, [&] {
                if (!comm) throw std::runtime_error("the group was never connected");
                task.start(*comm).wait();
            });
        }
    }

    template <class F>
    void perform(Operation operation, const Shared& work, F&& action) {
        try {
            action();
            calls[operation]++;
            work->finish({});
        } catch (...) {
            work->finish(message_of(std::current_exception()));
        }
    }

    std::mutex mutex;
    std::condition_variable changed;
    std::deque<Task> tasks;
    bool closing = false;
    bool ended = false;
    const Connect connect;
};

using Address = ccl::kvs::address_type;

std::vector<size_t> counts_of(const uint64_t* counts, int size) { return {counts, counts + size}; }

void* submit(void* group, Operation operation, Group::Start start) {
    return new Shared((*static_cast<std::shared_ptr<Group>*>(group))->submit(operation, std::move(start)));
}

}  // namespace

extern "C" {

// Number of calls of this operation that libccl returned from.
uint64_t rowmill_oneccl_calls(int operation) { return calls[operation]; }

// The version of the loaded libccl.
const char* rowmill_oneccl_version() {
    static const std::string version = ccl::get_library_version().full;
    return version.c_str();
}

// Create a key-value store and write its address (256 bytes), at which other ranks connect. Returns null, or the error.
// Pass `offer` to rowmill_oneccl_open, which frees it.
const char* rowmill_oneccl_offer(char* address, void** offer) {
    static thread_local std::string error;
    try {
        ccl::init();
        auto kvs = ccl::create_main_kvs();
        const Address found = kvs->get_address();
        std::memcpy(address, found.data(), found.size());
        *offer = new std::shared_ptr<ccl::kvs>(kvs);
        return nullptr;
    } catch (...) {
        error = message_of(std::current_exception());
        return error.c_str();
    }
}

// Create rank `rank` of a group of `size` ranks, which all pass this address. The rank that created the address passes
// its offer, the other ranks null. The first work of the group connects the ranks.
void* rowmill_oneccl_open(void* offer, const char* address, int rank, int size) {
    Address wanted;
    std::memcpy(wanted.data(), address, wanted.size());
    std::shared_ptr<ccl::kvs> offered;
    if (auto* given = static_cast<std::shared_ptr<ccl::kvs>*>(offer)) {
        offered = *given;
        delete given;
    }
    auto group = std::make_shared<Group>([=] {
        ccl::init();
        const auto kvs = offered ? offered : ccl::create_kvs(wanted);
        return ccl::create_communicator(size, rank, kvs);
    });
    std::thread([group] { group->run(); }).detach();
    return new std::shared_ptr<Group>(group);
}

void* rowmill_oneccl_connecting(void* group) {
    return new Shared((*static_cast<std::shared_ptr<Group>*>(group))->connecting);
}

void rowmill_oneccl_close(void* group) {
    auto* shared = static_cast<std::shared_ptr<Group>*>(group);
    (*shared)->close();
    delete shared;
}

// Collectives. Their buffers must stay valid until the work is done.

void* rowmill_oneccl_allreduce(void* group, void* data, uint64_t count, int type, int reduction) {
    return submit(group, ALLREDUCE, [=](const ccl::communicator& comm) {
        return ccl::allreduce(data, data, count, ccl::datatype(type), ccl::reduction(reduction), comm);
    });
}

void* rowmill_oneccl_broadcast(void* group, void* data, uint64_t count, int type, int root) {
    return submit(group, BROADCAST, [=](const ccl::communicator& comm) {
        return ccl::broadcast(data, count, ccl::datatype(type), root, comm);
    });
}

// Output: `count` elements per rank, in the order of ranks.
void* rowmill_oneccl_allgather(void* group, const void* input, uint64_t count, void* output, int type) {
    return submit(group, ALLGATHER, [=](const ccl::communicator& comm) {
        const std::vector<size_t> counts(comm.size(), count);
        return ccl::allgatherv(input, count, output, counts, ccl::datatype(type), comm);
    });
}

// Input: `count` elements per rank.
void* rowmill_oneccl_reduce_scatter(
    void* group, const void* input, void* output, uint64_t count, int type, int reduction) {
    return submit(group, REDUCE_SCATTER, [=](const ccl::communicator& comm) {
        return ccl::reduce_scatter(
            input, output, count, ccl::datatype(type), ccl::reduction(reduction), comm);
    });
}

// Both arrays of counts have `size` elements. They are read before this function returns.
void* rowmill_oneccl_all_to_all(
    void* group, int size, const void* input, const uint64_t* input_counts, void* output,
    const uint64_t* output_counts, int type) {
    auto sent = counts_of(input_counts, size), received = counts_of(output_counts, size);
    return submit(group, ALL_TO_ALL, [=](const ccl::communicator& comm) {
        return ccl::alltoallv(input, sent, output, received, ccl::datatype(type), comm);
    });
}

void* rowmill_oneccl_barrier(void* group) {
    return submit(group, BARRIER, [](const ccl::communicator& comm) { return ccl::barrier(comm); });
}

int rowmill_oneccl_wait(void* work, double seconds) { return (*static_cast<Shared*>(work))->wait(seconds); }

const char* rowmill_oneccl_error(void* work) { return (*static_cast<Shared*>(work))->error(); }

void rowmill_oneccl_release(void* work) { delete static_cast<Shared*>(work); }

}
