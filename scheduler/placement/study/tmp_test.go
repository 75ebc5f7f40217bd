package study

import (
	"encoding/json"
	"os"
	"testing"
	"time"

	"rowmill.io/scheduler/placement/dataset"
)

func TestTmp2(t *testing.T) {
	f, _ := os.Open(os.Getenv("ROWMILL_DATA") + "/cluster/disaggregated_DLRM_trace.csv")
	jobs, err := dataset.ReadTrace("t", f)
	if err != nil {
		t.Fatal(err)
	}
	f, _ = os.Open(os.Getenv("ROWMILL_DATA") + "/cluster/openb_pod_list_default.csv")
	pods, err := dataset.ReadPods("n", f)
	if err != nil {
		t.Fatal(err)
	}
	f, _ = os.Open(os.Getenv("ROWMILL_DATA") + "/cluster/openb_node_list_gpu_node.csv")
	nodes, err := dataset.ReadNodes("n", f)
	d := &Data{nodes, pods, jobs}
	facts, err := RunFacts(d)
	b, _ := json.Marshal(facts)
	t.Log(string(b), err)
	w := NewWorkload(pods, jobs, Larger)
	s := time.Now()
	k, run := Fit(&w, 6)
	t.Log(k, run.Before, time.Since(s))
	s = time.Now()
	h := RunClusterH(d, 3)
	b, _ = json.Marshal([]any{h.Levels, h.Others})
	t.Log(string(b), time.Since(s))
}
