package study

import (
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
	w := NewWorkload(pods, jobs, Larger)
	for _, p := range []string{"best-fit", "random", "fgd"} {
		s := time.Now()
		r := ClusterH(&w, FittedKnobs, p, .9, 1)
		r.nodes = nil
		t.Logf("%s %v %+v", p, time.Since(s), r)
	}
}
