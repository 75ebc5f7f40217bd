// oneCCL's C++ API behind a plain C one, for ctypes: no symbol of torch or Python, so one build serves all of them.
//
// Every group has a thread of its own that runs its collectives one after the other, in the order they were submitted:
// over its OFI transport oneCCL 2022.1 returns from a collective when it is done. Whoever submitted one waits for its
// work with a deadline, and is told what oneCCL threw. A collective that hangs because a peer is gone holds this
// thread for good; closing such a group leaves the thread behind.
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

// As in library.py.
enum Operation { CONNECT, ALLREDUCE, BROADCAST, ALLGATHER, REDUCE_SCATTER, ALL_TO_ALL, BARRIER, OPERATIONS };

std::array<std::atomic<uint64_t>, OPERATIONS> calls{};

// How long a group that is closed may take to end what it was asked for.
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

// Something asked for: done, failed or neither yet.
class Work {
  public:
    void finish(std::string error) {
        const std::lock_guard lock(mutex);
        message = std::move(error);
        done = true;
        changed.notify_all();
    }

    // 1: done; 0: not within so many seconds; -1: failed.
    int wait(double seconds) {
        std::unique_lock lock(mutex);
        if (!changed.wait_for(lock, std::chrono::duration<double>(seconds), [this] { return done; })) return 0;
        return message.empty() ? 1 : -1;
    }

    // Of work that failed; does not change any more.
    const char* error() const { return message.c_str(); }

  private:
    std::mutex mutex;
    std::condition_variable changed;
    bool done = false;
    std::string message;
};

using Shared = std::shared_ptr<Work>;

// The members of one communicator as one of them sees it.
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

// How often libccl returned from this operation.
uint64_t rowmill_oneccl_calls(int operation) { return calls[operation]; }

// The version of libccl that is loaded.
const char* rowmill_oneccl_version() {
    static const std::string version = ccl::get_library_version().full;
    return version.c_str();
}

// Offer an address of 256 bytes at which other ranks find this one; null, or why there is none. The offer is for
// rowmill_oneccl_open.
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

// Begin to be rank `rank` of `size` ranks who know this address; whoever offered it hands in the offer. The first work
// of the group is to find the others.
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

// Collectives: their memory must stay until the work is done.

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

// `count` elements of each rank, in their order.
void* rowmill_oneccl_allgather(void* group, const void* input, uint64_t count, void* output, int type) {
    return submit(group, ALLGATHER, [=](const ccl::communicator& comm) {
        const std::vector<size_t> counts(comm.size(), count);
        return ccl::allgatherv(input, count, output, counts, ccl::datatype(type), comm);
    });
}

// `count` elements for each rank.
void* rowmill_oneccl_reduce_scatter(
    void* group, const void* input, void* output, uint64_t count, int type, int reduction) {
    return submit(group, REDUCE_SCATTER, [=](const ccl::communicator& comm) {
        return ccl::reduce_scatter(
            input, output, count, ccl::datatype(type), ccl::reduction(reduction), comm);
    });
}

// As many counts as ranks, which are read before this returns.
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
