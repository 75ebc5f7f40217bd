package study

import (
	"errors"
	"fmt"

	"rowmill.io/scheduler/placement"
)

// Table 3 of the paper: three services on the day of a promotion, on borrowed training nodes. Memory, disk and NIC
// shares are not published, so they are not requested here.

// Promoted is one line of the table.
type Promoted struct {
	Service             string
	CPU, Dense          int
	CPUCores, DenseCore int64
}

// Table3 is the published table.
var Table3 = []Promoted{
	{"product-a", 25, 45, 48, 4},
	{"product-b", 15, 40, 48, 4},
	{"product-c", 15, 55, 48, 2},
}

// PromotionResult counts the nodes that each kind of deployment needs.
type PromotionResult struct {
	// Whole counts A100 nodes for monoliths, Split for dense instances on whole GPUs, MIG for dense instances on 2g.20gb.
	Whole int `json:"whole_nodes"`
	Split int `json:"split_nodes"`
	MIG   int `json:"mig_nodes"`
	// Saved is the percentage of A100 nodes that MIG saves.
	Saved float64 `json:"saved_percent"`
	// Instances counts dense instances; More counts additional instances of product-c that fit on the MIG nodes.
	Instances int `json:"dense_instances"`
	More      int `json:"more_dense_instances"`
	// CPUNodes counts nodes for the CPU instances, by cores per node.
	CPUNodes map[string]int `json:"cpu_nodes"`
	CPUCores int64          `json:"cpu_cores"`
}

// Promotion places the services of the table.
func Promotion() (PromotionResult, error) {
	result := PromotionResult{CPUNodes: map[string]int{}}
	var whole, dense, mig, cpu []placement.Instance
	for _, line := range Table3 {
		one := placement.Instance{Service: line.Service, Role: placement.RoleWhole, GPUs: 1}
		one.Cores = 1000 * (line.CPUCores + line.DenseCore)
		whole = append(whole, copies(one, max(line.CPU, line.Dense))...)
		one.Role, one.Cores = placement.RoleDense, 1000*line.DenseCore
		dense = append(dense, copies(one, line.Dense)...)
		one.Profile = "2g.20gb"
		mig = append(mig, copies(one, line.Dense)...)
		cpu = append(cpu, copies(placement.Instance{
			Service: line.Service, Role: placement.RoleCPU, Resources: placement.Resources{Cores: 1000 * line.CPUCores},
		}, line.CPU)...)
	}
	result.Instances = len(dense)
	var failed error
	need := func(k kind, instances []placement.Instance) int {
		count, err := fewestNodes(k, instances)
		failed = errors.Join(failed, err)
		return count
	}
	result.Whole = need(a100, whole)
	result.Split = need(a100, dense)
	result.MIG = need(a100MIG, mig)
	for _, cores := range []int64{96, 128, 192} {
		result.CPUNodes[fmt.Sprint(cores)] = need(cpuOnly(cores), cpu)
	}
	if failed != nil {
		return result, failed
	}
	for i := range cpu {
		result.CPUCores += cpu[i].Cores / 1000
	}
	result.Saved = 100 * (1 - float64(result.MIG)/float64(result.Whole))
	more, err := lend(result.MIG, mig)
	result.More = more
	return result, err
}

// copies returns a number of instances of one service with different names.
func copies(one placement.Instance, count int) []placement.Instance {
	all := make([]placement.Instance, count)
	for i := range all {
		all[i] = one
		all[i].Name = fmt.Sprintf("%s-%s-%03d", one.Service, one.Role, i)
	}
	return all
}

// fewestNodes returns the smallest number of nodes of one kind, below one leaf, that hold all instances.
func fewestNodes(k kind, instances []placement.Instance) (int, error) {
	for count := 1; count <= len(instances); count++ {
		c, err := newCluster(clos(1, 1, share{k, count}), placement.Options{})
		if err != nil {
			return 0, err
		}
		var rejection *placement.Rejection
		_, err = c.PlaceAll(instances)
		if err == nil {
			return count, nil
		}
		if !errors.As(err, &rejection) {
			return 0, err
		}
	}
	return 0, fmt.Errorf("%[2]d instances do not fit on %[2]d nodes of kind %[1]s", k.name, len(instances))
}

// lend borrows training nodes for a window, places the table's instances on them, plans how many more fit, and returns
// the nodes.
func lend(count int, instances []placement.Instance) (more int, err error) {
	c, err := newCluster(nil, placement.Options{})
	if err != nil {
		return 0, err
	}
	const day = 24 * 3600
	if err := c.Lend(placement.Loan{Name: "promotion", Nodes: clos(1, 1, share{a100MIG, count}), Until: day}); err != nil {
		return 0, err
	}
	if _, err := c.PlaceAll(instances); err != nil {
		return 0, err
	}
	more, _, err = c.Plan(instances[len(instances)-1:], len(instances))
	if err != nil {
		return 0, err
	}
	if gone := c.Return(day); len(gone) != len(instances) || c.Len() != 0 {
		return 0, fmt.Errorf("%d of %d instances left with the lent nodes, %d stayed", len(gone), len(instances), c.Len())
	}
	return more, nil
}
