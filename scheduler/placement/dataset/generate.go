package dataset

import (
	"encoding/csv"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
)

// Names of the public files, as published and as written by Generate.
const (
	NodesFile = "openb_node_list_gpu_node.csv"
	PodsFile  = "openb_pod_list_default.csv"
	TraceFile = "disaggregated_DLRM_trace.csv"
)

// frequent is a row of a table of common values: the weight of a value and its fields.
type frequent[T any] struct {
	weight int
	value  T
}

func pick[T any](source *rand.Rand, table []frequent[T]) T {
	sum := 0
	for _, one := range table {
		sum += one.weight
	}
	at := source.IntN(sum)
	for _, one := range table {
		if at -= one.weight; at < 0 {
			return one.value
		}
	}
	panic("no value")
}

type nodeShape struct {
	cpu, memory, gpu int
	model            string
}

type podShape struct{ cpu, memory, gpus, share int }

// The most common shapes of the public 2023 lists, rounded, with their frequencies.
var (
	nodeShapes = []frequent[nodeShape]{
		{549, nodeShape{96_000, 393_216, 8, "G2"}},
		{387, nodeShape{104_000, 524_288, 2, "T4"}},
		{107, nodeShape{16_000, 122_880, 2, "P100"}},
		{39, nodeShape{128_000, 786_432, 8, "G3"}},
		{28, nodeShape{32_000, 131_072, 4, "V100M16"}},
		{22, nodeShape{64_000, 262_144, 2, "P100"}},
		{21, nodeShape{96_000, 786_432, 8, "V100M32"}},
		{19, nodeShape{8_000, 32_768, 1, "V100M16"}},
		{17, nodeShape{96_000, 393_216, 4, "T4"}},
	}
	podShapes = []frequent[podShape]{
		{1088, podShape{16_000, 40_960, 0, 0}},
		{1500, podShape{3_000, 5_600, 1, 800}},
		{1400, podShape{11_000, 48_000, 1, 1000}},
		{1000, podShape{12_000, 48_000, 1, 500}},
		{700, podShape{8_000, 30_000, 1, 470}},
		{900, podShape{12_000, 40_000, 1, 1000}},
		{700, podShape{4_000, 22_000, 1, 300}},
		{790, podShape{6_000, 20_000, 1, 1000}},
		{16, podShape{20_000, 80_000, 2, 1000}},
		{15, podShape{40_000, 160_000, 4, 1000}},
		{44, podShape{88_000, 320_000, 8, 1000}},
	}
)

// Generate writes three files with the shape of the public ones: the same number of rows, and similar sizes,
// frequencies and lifetimes of requests. Results on these files say nothing about the public traces.
func Generate(seed uint64, create func(name string) (io.WriteCloser, error)) error {
	source := rand.New(rand.NewPCG(seed, 3))
	for _, file := range []struct {
		name string
		rows func(*rand.Rand) [][]string
	}{{NodesFile, nodeRows}, {PodsFile, podRows}, {TraceFile, traceRows}} {
		out, err := create(file.name)
		if err != nil {
			return fmt.Errorf("create %s: %w", file.name, err)
		}
		writer := csv.NewWriter(out)
		if err := writer.WriteAll(file.rows(source)); err != nil {
			return fmt.Errorf("write %s: %w", file.name, err)
		}
		if err := out.Close(); err != nil {
			return fmt.Errorf("close %s: %w", file.name, err)
		}
	}
	return nil
}

func nodeRows(source *rand.Rand) [][]string {
	rows := [][]string{{"sn", "cpu_milli", "memory_mib", "gpu", "model"}}
	for i := range 1213 {
		n := pick(source, nodeShapes)
		rows = append(rows, []string{fmt.Sprintf("node-%04d", i), strconv.Itoa(n.cpu), strconv.Itoa(n.memory), strconv.Itoa(n.gpu), n.model})
	}
	return rows
}

func podRows(source *rand.Rand) [][]string {
	rows := [][]string{{"name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli"}}
	for i := range 8152 {
		p := pick(source, podShapes)
		rows = append(rows, []string{fmt.Sprintf("pod-%04d", i), strconv.Itoa(p.cpu), strconv.Itoa(p.memory), strconv.Itoa(p.gpus), strconv.Itoa(p.share)})
	}
	return rows
}

// traceRows generates 156 apps of very different sizes. Each app has one CPU request and one dense request. A third of
// the instances run from before the trace; the rest start at random times in 31 days, and half of these end again.
func traceRows(source *rand.Rand) [][]string {
	rows := [][]string{{
		"instance_sn", "role", "app_name", "cpu_request", "gpu_request", "rdma_request", "memory_request", "disk_request",
		"max_instance_per_node", "creation_time", "scheduled_time", "deletion_time",
	}}
	const days, instances, apps = 31, 23_871, 156
	weights := make([]frequent[int], apps)
	cpus, denses := make([]int, apps), make([]int, apps)
	nics, limits := make([]int, apps), make([]int, apps)
	for i := range weights {
		weights[i] = frequent[int]{1 + 2000/(i+1), i}
		cpus[i] = pick(source, []frequent[int]{{43, 48}, {72, 64}, {44, 96}, {4, 192}})
		denses[i] = pick(source, []frequent[int]{{6, 8}, {1, 12}})
		nics[i] = pick(source, []frequent[int]{{71, 1}, {12, 25}, {11, 100}, {7, 51}})
		limits[i] = pick(source, []frequent[int]{{1, -1}, {4, 2}, {4, 4}, {1, 8}})
	}
	for i := range instances {
		app := pick(source, weights)
		role, cores, gpus, nic, memory, limit := "CN", cpus[app], 0, nics[app], 5*cpus[app], -1
		if source.IntN(16_485+7_386) < 7_386 {
			role, cores, gpus, nic, memory, limit = "HN", denses[app], 1, 25, 40, limits[app]
		}
		created, scheduled, deleted := "", "", ""
		end := days * 24 * 3600
		start := source.IntN(end)
		if source.IntN(3) > 0 {
			created, scheduled = strconv.Itoa(start), strconv.Itoa(start)
			if source.IntN(50) == 0 {
				scheduled = strconv.Itoa(start + source.IntN(3600))
			}
		} else {
			start = 0
		}
		if source.IntN(8) < 5 {
			deleted = strconv.Itoa(start + source.IntN(max(end-start, 1)))
		}
		rows = append(rows, []string{
			fmt.Sprintf("instance_%d", i), role, fmt.Sprintf("app_%d", app), strconv.Itoa(cores), strconv.Itoa(gpus),
			strconv.Itoa(nic), strconv.Itoa(memory), "255", strconv.Itoa(limit), created, scheduled, deleted,
		})
	}
	return rows
}
