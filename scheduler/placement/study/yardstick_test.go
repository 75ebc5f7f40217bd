package study

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"rowmill.io/scheduler/placement/dataset"
)

func TestTmp(t *testing.T) {
	d := os.Getenv("ROWMILL_DATA") + "/cluster/"
	f, _ := os.Open(filepath.Join(d, "openb_node_list_gpu_node.csv"))
	nodes, err := dataset.ReadNodes("n", f)
	if err != nil {
		t.Fatal(err)
	}
	f, _ = os.Open(filepath.Join(d, "openb_pod_list_default.csv"))
	pods, err := dataset.ReadPods("n", f)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range YardstickPolicies {
		a, fr := 0.0, 0.0
		s := time.Now()
		for seed := uint64(0); seed < 3; seed++ {
			r := Yardstick(nodes, pods, p, seed)
			a += r.Allocated / 3
			fr += r.Fragments / 3
		}
		t.Log(p, a, fr, time.Since(s))
	}
}
