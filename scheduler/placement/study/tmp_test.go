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
	for _, form := range []string{"split", "whole"} {
		for _, p := range TracePolicies {
			s := time.Now()
			r, err := Trace(jobs, p, form, 1)
			t.Logf("%v %+v %v", time.Since(s), r, err)
		}
	}
}
