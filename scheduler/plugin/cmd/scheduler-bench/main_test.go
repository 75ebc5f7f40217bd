package main

import "testing"

// Each variant places all pods of a small cluster: the plugin and affinity below one spine per service.
func TestEachVariantPlacesAllPods(t *testing.T) {
	for _, variant := range []string{"none", "plugin", "affinity"} {
		r, err := run(t.Context(), variant, "../../../../examples/scheduler/rowmill-scheduler.yaml", size{nodes: 600, bound: 100, pods: 100})
		if err != nil {
			t.Fatalf("%s: %v", variant, err)
		}
		if r.Pods != 100 || r.Seconds <= 0 || r.CPU <= 0 || variant != "none" && r.Spines != 1 {
			t.Errorf("%s: %+v", variant, r)
		}
	}
}
