package kube

// The fields of API objects that this package reads; all others are ignored.

type list struct {
	Kind  string   `json:"kind"`
	Items []object `json:"items"`
}

type object struct {
	Kind     string   `json:"kind"`
	Metadata metadata `json:"metadata"`
	Spec     spec     `json:"spec"`
	Status   status   `json:"status"`
}

type metadata struct {
	Name        string            `json:"name"`
	Namespace   string            `json:"namespace"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

func (m *metadata) key() string {
	if m.Namespace == "" {
		return m.Name
	}
	return m.Namespace + "/" + m.Name
}

// spec has the fields of nodes, pods and resource slices.
type spec struct {
	Unschedulable  bool        `json:"unschedulable"`
	NodeName       string      `json:"nodeName"`
	Containers     []container `json:"containers"`
	InitContainers []container `json:"initContainers"`
	Overhead       quantities  `json:"overhead"`
	ResourceClaims []podClaim  `json:"resourceClaims"`
	Driver         string      `json:"driver"`
	Pool           struct {
		Name       string `json:"name"`
		Generation int64  `json:"generation"`
	} `json:"pool"`
	Devices []device `json:"devices"`
}

type container struct {
	RestartPolicy string `json:"restartPolicy"`
	Resources     struct {
		Requests quantities `json:"requests"`
	} `json:"resources"`
}

type podClaim struct {
	Name              string `json:"name"`
	ResourceClaimName string `json:"resourceClaimName"`
}

type device struct {
	Name       string `json:"name"`
	Attributes map[string]struct {
		String string `json:"string"`
		Int    *int64 `json:"int"`
	} `json:"attributes"`
}

type status struct {
	Phase                 string     `json:"phase"`
	Allocatable           quantities `json:"allocatable"`
	ResourceClaimStatuses []podClaim `json:"resourceClaimStatuses"`
	Allocation            struct {
		Devices struct {
			Results []deviceResult `json:"results"`
		} `json:"devices"`
	} `json:"allocation"`
}

type deviceResult struct {
	Driver string `json:"driver"`
	Pool   string `json:"pool"`
	Device string `json:"device"`
}
