package main

import (
	"strings"
	"testing"
)

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

func TestBadFlagsAreRefused(t *testing.T) {
	small := size{nodes: 1, pods: 1}
	for _, one := range []struct {
		variant, configuration string
		size                   size
		says                   string
	}{
		{"fast", "", small, `-variant must be none, plugin or affinity, got "fast"`},
		{"plugin", "", small, "needs -config"},
		{"plugin", "nowhere.yaml", small, "nowhere.yaml"},
		{"none", "", size{nodes: 0, pods: 1}, "-nodes and -pods must be >= 1"},
		{"none", "", size{nodes: 1, pods: 1, bound: -1}, "-bound >= 0, got 1, 1 and -1"},
	} {
		if _, err := run(t.Context(), one.variant, one.configuration, one.size); err == nil || !strings.Contains(err.Error(), one.says) {
			t.Errorf("%s, %q, %+v: got %v, want an error with %q", one.variant, one.configuration, one.size, err, one.says)
		}
	}
}
