package plugin

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"

	"rowmill.io/scheduler/placement"
)

func TestArguments(t *testing.T) {
	standard := Args{
		ZoneLabel: "topology.kubernetes.io/zone", SpineLabel: "network.topology.nvidia.com/spine",
		LeafLabel: "network.topology.nvidia.com/leaf", Growth: 1.3, SpineRule: SpineHard,
	}
	changed := standard
	changed.UplinkNICs, changed.SpineRule, changed.LeafLabel = 4.5, SpinePreferred, "example.com/switch"
	for _, one := range []struct {
		name, content, text string
		want                Args
	}{
		{"empty", runtime.ContentTypeJSON, "", standard},
		{"version and kind", runtime.ContentTypeJSON, `{"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "RowmillTopologyArgs"}`, standard},
		{"JSON", "", `{"uplinkNICs": 4.5, "spineRule": "Preferred", "leafLabel": "example.com/switch"}`, changed},
		{"YAML", runtime.ContentTypeYAML, "uplinkNICs: 4.5\nspineRule: Preferred\nleafLabel: example.com/switch\n", changed},
	} {
		got, err := readArgs(&runtime.Unknown{Raw: []byte(one.text), ContentType: one.content})
		if err != nil || *got != one.want {
			t.Errorf("%s: %+v, %v", one.name, got, err)
		}
	}
	if got, err := readArgs(nil); err != nil || *got != standard || got.strength() != placement.Hard {
		t.Errorf("none: %+v, %v", got, err)
	}
	if changed.strength() != placement.Preferred {
		t.Error("the preferred rule has no effect")
	}
}

func TestBadArgumentsAreRefused(t *testing.T) {
	for _, one := range []struct{ name, text, says string }{
		{"unknown field", `{"spineLable": "x"}`, `unknown field "spineLable"`},
		{"wrong type", `{"growth": "much"}`, "cannot unmarshal string"},
		{"no object", `[1]`, "cannot unmarshal array"},
		{"growth", `{"growth": 0.5}`, `growth: Invalid value: 0.5: must be >= 1`},
		{"uplink", `{"uplinkNICs": -1}`, `uplinkNICs: Invalid value: -1: must be >= 0`},
		{"rule", `{"spineRule": "Soft"}`, `spineRule: Unsupported value: "Soft": supported values: "Hard", "Preferred"`},
		{"label", `{"zoneLabel": "a b"}`, `zoneLabel: Invalid value: "a b"`},
		{"equal labels", `{"spineLabel": "x", "leafLabel": "x"}`, "leafLabel: Invalid value: \"x\": must differ from spineLabel"},
	} {
		_, err := readArgs(&runtime.Unknown{Raw: []byte(one.text), ContentType: runtime.ContentTypeJSON})
		if err == nil || !strings.Contains(err.Error(), one.says) {
			t.Errorf("%s: got %v, want an error with %q", one.name, err, one.says)
		}
	}
}
