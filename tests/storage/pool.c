/*
 * Pools rows of a storage node through Linux's NVMe passthrough, and compares every vector with a sum of rows that are read
 * as blocks:
 *
 *     pool ioctl|uring COMMANDS BATCHES    with the devices /dev/ng0n1 and /dev/nvme0n1
 *
 * docs/reference/storage-commands.md has the layouts. With io_uring, COMMANDS stage commands are in flight at a time, then as
 * many fetches. Prints what it compared; any difference or error ends it with status 1.
 */
#include <endian.h>
#include <err.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <linux/nvme_ioctl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { STAGE = 0x81, FETCH = 0x82, GET_LOG_PAGE = 0x02, TABLES_PAGE = 0xc0, UNKNOWN_HANDLE = 0x7c0 };
enum { BLOCK_BYTES = 4096, TABLES_MAX = 16, BAGS = 16, BAG_IDS_MAX = 20, HEADER_BYTES = 32, COMMANDS_MAX = 64 };

struct table {
    uint32_t number, dim, stride, is_bf16, group;
    uint64_t rows, first_block;
};

/* A batch: bags of each table, and what the node answered. */
struct batch {
    uint32_t stage_bytes, result_bytes;
    uint32_t offsets[TABLES_MAX][BAGS + 1];
    uint64_t ids[TABLES_MAX][BAGS * BAG_IDS_MAX];
    char *stage, *result;
};

static int characters, blocks;
static uint32_t namespace;
static struct table tables[TABLES_MAX];
static uint32_t table_count, row_count, nonzero_count;

static uint64_t number_at(const void *at, unsigned bytes) {
    uint64_t number = 0;
    memcpy(&number, at, bytes);
    return le64toh(number);
}

static uint64_t random_below(uint64_t end) {
    static uint64_t state = 88172645463325252;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state % end;
}

static void check(int status, const char *what) {
    if (status < 0) err(1, "%s", what);
    if (status > 0) errx(1, "%s: status %#x", what, status);
}

static void read_tables(void) {
    char *page = calloc(1, BLOCK_BYTES * 2);
    struct nvme_passthru_cmd64 command = {
        .opcode = GET_LOG_PAGE,
        .nsid = namespace,
        .addr = (uintptr_t)page,
        .data_len = BLOCK_BYTES * 2,
        .cdw10 = TABLES_PAGE | (BLOCK_BYTES * 2 / 4 - 1) << 16,
    };
    check(ioctl(characters, NVME_IOCTL_ADMIN64_CMD, &command), "log page of tables");
    uint32_t entry_bytes = number_at(page + 2, 2);
    table_count = number_at(page + 4, 4);
    if (table_count == 0 || table_count > TABLES_MAX) errx(1, "%u tables", table_count);
    for (uint32_t at = 0; at < table_count; at++) {
        const char *entry = page + 16 + at * entry_bytes;
        tables[at] = (struct table){
            .number = number_at(entry, 4),
            .dim = number_at(entry + 4, 4),
            .rows = number_at(entry + 8, 8),
            .first_block = number_at(entry + 16, 8),
            .stride = number_at(entry + 24, 4),
            .is_bf16 = entry[28],
            .group = number_at(entry + 288, 4),
        };
        if (entry[29] != 1) errx(1, "table %u is not dense", at);
        if (tables[at].group != tables[0].group) errx(1, "table %u is of another group", at);
    }
    free(page);
}

/* Draw ids, and describe them as a stage command does. */
static void draw(struct batch *batch) {
    char *at = batch->stage = calloc(1, 1 << 19);
    uint16_t version = htole16(1);
    memcpy(at, &version, 2);
    at[4] = 8; /* bytes of an id */
    memcpy(at + 8, &table_count, 4);
    at += 16 + 16 * table_count;
    batch->result_bytes = HEADER_BYTES;
    for (uint32_t feature = 0; feature < table_count; feature++) {
        uint32_t *offsets = batch->offsets[feature], count = 0;
        for (uint32_t bag = 0; bag < BAGS; bag++) {
            offsets[bag] = count;
            for (uint64_t ids = random_below(BAG_IDS_MAX + 1); ids > 0; ids--)
                batch->ids[feature][count++] = random_below(tables[feature].rows);
        }
        offsets[BAGS] = count;
        uint32_t entry[4] = {tables[feature].number, 0, BAGS, count};
        memcpy(batch->stage + 16 + 16 * feature, entry, 16);
        memcpy(at, offsets, 4 * BAGS); /* a multiple of 8 bytes */
        memcpy(at + 4 * BAGS, batch->ids[feature], 8 * count);
        at += 4 * BAGS + 8 * count;
        batch->result_bytes += BAGS * tables[feature].dim * 4;
    }
    batch->stage_bytes = at - batch->stage;
    memcpy(batch->stage + 12, &batch->stage_bytes, 4);
    batch->result = malloc(batch->result_bytes);
    memset(batch->result, 0xff, batch->result_bytes);
}

static struct nvme_uring_cmd command_of(uint8_t opcode, uint64_t handle, const struct batch *batch) {
    int is_stage = opcode == STAGE;
    return (struct nvme_uring_cmd){
        .opcode = opcode,
        .nsid = namespace,
        .addr = (uintptr_t)(is_stage ? batch->stage : batch->result),
        .data_len = is_stage ? batch->stage_bytes : batch->result_bytes,
        .cdw10 = (uint32_t)handle,
        .cdw11 = (uint32_t)(handle >> 32),
    };
}

static int by_ioctl(struct nvme_uring_cmd part) {
    struct nvme_passthru_cmd64 command = {0};
    memcpy(&command, &part, sizeof part); /* equal but for the result at its end */
    return ioctl(characters, NVME_IOCTL_IO64_CMD, &command);
}

/* A ring with 128-byte entries, as commands need, for COMMANDS_MAX commands. */
static struct {
    int fd;
    char *submissions, *completions;
    struct io_uring_params at;
    char *entries;
} ring;

static void make_ring(void) {
    ring.at.flags = IORING_SETUP_SQE128 | IORING_SETUP_CQE32;
    check((ring.fd = syscall(SYS_io_uring_setup, COMMANDS_MAX, &ring.at)) < 0 ? -1 : 0, "io_uring_setup");
    size_t queue_bytes = ring.at.sq_off.array + COMMANDS_MAX * 4, all_bytes = ring.at.cq_off.cqes + 2 * COMMANDS_MAX * 32;
    int both = PROT_READ | PROT_WRITE;
    ring.submissions = mmap(0, queue_bytes, both, MAP_SHARED | MAP_POPULATE, ring.fd, IORING_OFF_SQ_RING);
    ring.completions = mmap(0, all_bytes, both, MAP_SHARED | MAP_POPULATE, ring.fd, IORING_OFF_CQ_RING);
    ring.entries = mmap(0, COMMANDS_MAX * 128, both, MAP_SHARED | MAP_POPULATE, ring.fd, IORING_OFF_SQES);
    if (ring.submissions == MAP_FAILED || ring.completions == MAP_FAILED || ring.entries == MAP_FAILED) err(1, "mmap");
}

/* Submit one command for each batch, together, and wait for all. */
static void by_uring(uint8_t opcode, uint64_t first_handle, const struct batch *batches, uint32_t count) {
    uint32_t *tail = (uint32_t *)(ring.submissions + ring.at.sq_off.tail);
    uint32_t *array = (uint32_t *)(ring.submissions + ring.at.sq_off.array);
    uint32_t *head = (uint32_t *)(ring.completions + ring.at.cq_off.head);
    for (uint32_t at = 0; at < count; at++) {
        uint32_t slot = (*tail + at) % ring.at.sq_entries;
        struct io_uring_sqe *entry = (struct io_uring_sqe *)(ring.entries + 128 * slot);
        struct nvme_uring_cmd command = command_of(opcode, first_handle + at, &batches[at]);
        memset(entry, 0, 128);
        entry->opcode = IORING_OP_URING_CMD;
        entry->fd = characters;
        entry->cmd_op = NVME_URING_CMD_IO;
        memcpy(entry->cmd, &command, sizeof command);
        array[slot] = slot;
    }
    __atomic_store_n(tail, *tail + count, __ATOMIC_RELEASE);
    int submitted = syscall(SYS_io_uring_enter, ring.fd, count, count, IORING_ENTER_GETEVENTS, NULL, 0);
    if (submitted != (int)count) err(1, "io_uring_enter took %d of %u commands", submitted, count);
    for (uint32_t at = 0; at < count; at++) {
        const char *completion = ring.completions + ring.at.cq_off.cqes + 32 * ((*head + at) % ring.at.cq_entries);
        int32_t status = ((const struct io_uring_cqe *)completion)->res;
        if (status != 0) errx(1, "opcode %#x by io_uring: %d", opcode, status);
    }
    __atomic_store_n(head, *head + count, __ATOMIC_RELEASE);
}

/* Compare the node's vectors with sums of rows, which are read as blocks. */
static void compare(const struct batch *batch) {
    uint32_t bytes = number_at(batch->result + 4, 4);
    if (bytes != batch->result_bytes - HEADER_BYTES) errx(1, "%u bytes of a result", bytes);
    const float *vector = (const float *)(batch->result + HEADER_BYTES);
    char row[BLOCK_BYTES];
    for (uint32_t feature = 0; feature < table_count; feature++) {
        const struct table *table = &tables[feature];
        for (uint32_t bag = 0; bag < BAGS; bag++, vector += table->dim) {
            float sum[BLOCK_BYTES / 2] = {0};
            for (uint32_t at = batch->offsets[feature][bag]; at < batch->offsets[feature][bag + 1]; at++, row_count++) {
                off_t start = table->first_block * BLOCK_BYTES + batch->ids[feature][at] * table->stride;
                if (pread(blocks, row, table->stride, start) != table->stride) err(1, "read at %ld", (long)start);
                for (uint32_t column = 0; column < table->dim; column++) {
                    uint32_t bits = table->is_bf16 ? number_at(row + 2 * column, 2) << 16 : number_at(row + 4 * column, 4);
                    float weight;
                    memcpy(&weight, &bits, 4);
                    sum[column] += weight;
                }
            }
            for (uint32_t column = 0; column < table->dim; column++) {
                nonzero_count += sum[column] != 0;
                if (vector[column] != sum[column])
                    errx(1, "table %u, bag %u, column %u: pooled %a, sum %a", table->number, bag, column, vector[column], sum[column]);
            }
        }
    }
}

int main(int count, char **arguments) {
    if (count != 4) errx(1, "usage: pool ioctl|uring COMMANDS BATCHES");
    int is_uring = !strcmp(arguments[1], "uring");
    uint32_t commands = atoi(arguments[2]), rounds = atoi(arguments[3]);
    if (commands == 0 || commands > COMMANDS_MAX) errx(1, "COMMANDS is %u", commands);
    if ((characters = open("/dev/ng0n1", O_RDWR)) < 0 || (blocks = open("/dev/nvme0n1", O_RDONLY)) < 0) err(1, "open");
    namespace = ioctl(characters, NVME_IOCTL_ID);
    read_tables();
    if (is_uring) make_ring();
    struct batch *batches = calloc(commands, sizeof *batches);
    for (uint64_t round = 0, handle = (1ULL << 40) + getpid(); round < rounds; round++, handle += commands) {
        for (uint32_t at = 0; at < commands; at++) draw(&batches[at]);
        if (is_uring) {
            by_uring(STAGE, handle, batches, commands);
            by_uring(FETCH, handle, batches, commands);
        }
        for (uint32_t at = 0; at < commands; at++) {
            if (!is_uring) {
                check(by_ioctl(command_of(STAGE, handle + at, &batches[at])), "stage");
                check(by_ioctl(command_of(FETCH, handle + at, &batches[at])), "fetch");
            }
            compare(&batches[at]);
            /* A fetch frees its result. */
            int status = by_ioctl(command_of(FETCH, handle + at, &batches[at]));
            if ((status & 0x7ff) != UNKNOWN_HANDLE) errx(1, "a second fetch: status %#x", status);
            free(batches[at].stage);
            free(batches[at].result);
        }
    }
    printf("%u batches, %u rows, %u numbers other than 0\n", commands * rounds, row_count, nonzero_count);
    return 0;
}
