package plugin

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"

	"rowmill.io/scheduler/placement"
	"rowmill.io/scheduler/placement/kube"
)

// SpineRule says what happens to a pod without room below the spine of its service.
type SpineRule string

// Values of SpineRule.
const (
	// SpineHard makes the pod wait.
	SpineHard SpineRule = "Hard"
	// SpinePreferred lets the pod run below another spine.
	SpinePreferred SpineRule = "Preferred"
)

// Args are the arguments of the plugin in the configuration of the scheduler. Absent fields have the defaults.
type Args struct {
	metav1.TypeMeta `json:",inline"`
	// ZoneLabel, SpineLabel and LeafLabel are keys of node labels; defaults topology.kubernetes.io/zone,
	// network.topology.nvidia.com/spine and network.topology.nvidia.com/leaf.
	ZoneLabel  string `json:"zoneLabel,omitempty"`
	SpineLabel string `json:"spineLabel,omitempty"`
	LeafLabel  string `json:"leafLabel,omitempty"`
	// UplinkNICs is the bandwidth of a leaf's uplink as a number of NICs; 0, the default, takes the number of NICs below
	// the leaf. Pods may use 80 % of it.
	UplinkNICs float64 `json:"uplinkNICs,omitempty"`
	// Growth is the factor by which a service may grow without a second spine; default 1.3.
	Growth float64 `json:"growth,omitempty"`
	// SpineRule is Hard by default.
	SpineRule SpineRule `json:"spineRule,omitempty"`
}

// readArgs decodes, defaults and validates arguments. Unknown fields are errors.
func readArgs(object runtime.Object) (*Args, error) {
	args := &Args{
		ZoneLabel: kube.DefaultLabels.Zone, SpineLabel: kube.DefaultLabels.Spine, LeafLabel: kube.DefaultLabels.Leaf,
		Growth: placement.DefaultGrowth, SpineRule: SpineHard,
	}
	switch configured := object.(type) {
	case nil:
	case *runtime.Unknown:
		if err := decodeArgs(configured, args); err != nil {
			return nil, err
		}
	default:
		return nil, fmt.Errorf("must be an object with the fields of the plugin, got %T", object)
	}
	args.TypeMeta = metav1.TypeMeta{}
	return args, args.validate().ToAggregate()
}

func decodeArgs(configured *runtime.Unknown, args *Args) error {
	text := configured.Raw
	if len(text) == 0 {
		return nil
	}
	if configured.ContentType == runtime.ContentTypeYAML {
		var err error
		if text, err = yaml.YAMLToJSON(text); err != nil {
			return err
		}
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	return decoder.Decode(args)
}

func (a *Args) validate() field.ErrorList {
	var errs field.ErrorList
	keys := map[string]string{}
	for _, label := range []struct{ name, key string }{
		{"zoneLabel", a.ZoneLabel}, {"spineLabel", a.SpineLabel}, {"leafLabel", a.LeafLabel},
	} {
		path := field.NewPath(label.name)
		for _, says := range validation.IsQualifiedName(label.key) {
			errs = append(errs, field.Invalid(path, label.key, says))
		}
		if other := keys[label.key]; other != "" {
			errs = append(errs, field.Invalid(path, label.key, "must differ from "+other))
		}
		keys[label.key] = label.name
	}
	if !(a.UplinkNICs >= 0) || math.IsInf(a.UplinkNICs, 1) {
		errs = append(errs, field.Invalid(field.NewPath("uplinkNICs"), a.UplinkNICs, "must be >= 0; 0 takes the NICs below the leaf"))
	}
	if !(a.Growth >= 1) || math.IsInf(a.Growth, 1) {
		errs = append(errs, field.Invalid(field.NewPath("growth"), a.Growth, "must be >= 1"))
	}
	if a.SpineRule != SpineHard && a.SpineRule != SpinePreferred {
		errs = append(errs, field.NotSupported(field.NewPath("spineRule"), a.SpineRule, []SpineRule{SpineHard, SpinePreferred}))
	}
	return errs
}

func (a *Args) strength() placement.Strength {
	if a.SpineRule == SpinePreferred {
		return placement.Preferred
	}
	return placement.Hard
}
