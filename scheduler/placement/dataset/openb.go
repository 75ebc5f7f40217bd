package dataset

import (
	"fmt"
	"io"

	"rowmill.io/scheduler/placement/fragment"
)

// ReadNodes reads a node list of the 2023 trace: sn, cpu_milli, memory_mib, gpu, model. All nodes are empty.
func ReadNodes(name string, r io.Reader) ([]fragment.Node, error) {
	var nodes []fragment.Node
	seen := map[string]bool{}
	err := readTable(name, r, []string{"sn", "cpu_milli", "memory_mib", "gpu"}, func(row *row) error {
		node := fragment.NewNode(row.text("sn"), int64(row.count("cpu_milli")), int64(row.count("memory_mib")), row.count("gpu"))
		if seen[node.Name] {
			return fmt.Errorf("node %q is listed twice", node.Name)
		}
		seen[node.Name] = true
		nodes = append(nodes, node)
		return nil
	})
	return nodes, err
}

// ReadPods reads a pod list of the 2023 trace: cpu_milli, memory_mib, num_gpu, gpu_milli.
func ReadPods(name string, r io.Reader) ([]fragment.Pod, error) {
	var pods []fragment.Pod
	err := readTable(name, r, []string{"cpu_milli", "memory_mib", "num_gpu", "gpu_milli"}, func(row *row) error {
		pod := fragment.Pod{
			Cores: int64(row.count("cpu_milli")), Memory: int64(row.count("memory_mib")),
			GPUs: row.count("num_gpu"),
		}
		if pod.GPUs > 0 {
			pod.Share = row.count("gpu_milli")
			if row.err == nil && (pod.Share < 1 || pod.Share > fragment.Whole) {
				return fmt.Errorf("gpu_milli must be in [1, %d] where num_gpu > 0, got %d", fragment.Whole, pod.Share)
			}
		}
		pods = append(pods, pod)
		return nil
	})
	return pods, err
}
