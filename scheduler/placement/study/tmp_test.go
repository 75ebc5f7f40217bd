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
	for _, form := range []string{"split"} {
		for m := range 1 {
			for _, p := range []string{"rowmill"} {
				s := time.Now()
				r, err := Trace(jobs, p, form, 1+uint64(m)*0)
				t.Logf("%v %+v %v", time.Since(s), r, err)
			}
		}
	}
}
