package placement

import (
	"fmt"
	"slices"
	"strings"
)

// DefaultGrowth is the default of Options.Growth.
const DefaultGrowth = 1.3

// Options are limits of the whole cluster; zero values select the defaults.
type Options struct {
	// Growth multiplies the expected demand of a service when its spine is chosen; default DefaultGrowth.
	Growth float64
	// UplinkLimit is the fraction of a leaf's uplink that instances may use; default 0.8.
	UplinkLimit float64
	// UplinkNICs is the bandwidth of a leaf's uplink as a number of NICs; 0 derives it from the NICs below the leaf.
	UplinkNICs float64
	// Oversubscription is the ratio of NICs below a leaf to its uplink if UplinkNICs is 0; default 1.
	Oversubscription float64
}

// Cluster holds nodes, services and running instances.
type Cluster struct {
	options   Options
	spines    []*spine
	hosts     map[string]*host
	services  map[string]*service
	instances map[string]*running
	loans     map[string]Loan
}

type running struct {
	Assignment
	host  *host
	group *group
}

// NewCluster returns a cluster without nodes.
func NewCluster(options Options) (*Cluster, error) {
	for _, field := range []struct {
		name     string
		value    *float64
		standard float64
		least    float64
	}{
		{"Growth", &options.Growth, DefaultGrowth, 1},
		{"UplinkLimit", &options.UplinkLimit, 0.8, 0},
		{"UplinkNICs", &options.UplinkNICs, 0, 0},
		{"Oversubscription", &options.Oversubscription, 1, 0},
	} {
		if *field.value == 0 {
			*field.value = field.standard
		}
		if !(*field.value >= field.least) {
			return nil, fmt.Errorf("options: %s must be >= %v, got %v", field.name, field.least, *field.value)
		}
	}
	return &Cluster{
		options:   options,
		hosts:     map[string]*host{},
		services:  map[string]*service{},
		instances: map[string]*running{},
		loans:     map[string]Loan{},
	}, nil
}

// AddNode adds an empty node.
func (c *Cluster) AddNode(n Node) error {
	if err := n.validate(); err != nil {
		return err
	}
	if c.hosts[n.Name] != nil {
		return fmt.Errorf("node %q is in the cluster already", n.Name)
	}
	c.attach(newHost(n, c.leafOf(&n)))
	return nil
}

// RemoveNode removes a node and returns the instances that ran on it, by name. They are no longer in the cluster.
func (c *Cluster) RemoveNode(name string) ([]Instance, error) {
	h := c.hosts[name]
	if h == nil {
		return nil, fmt.Errorf("node %q is not in the cluster", name)
	}
	var gone []Instance
	for _, r := range c.instances {
		if r.host == h {
			gone = append(gone, r.Instance)
		}
	}
	slices.SortFunc(gone, compareInstances)
	for i := range gone {
		c.release(c.instances[gone[i].Name])
	}
	c.detach(h)
	return gone, nil
}

func compareInstances(a, b Instance) int {
	return strings.Compare(a.Name, b.Name)
}

// Declare sets how a service is placed. It may be called again while instances run; it moves none of them.
func (c *Cluster) Declare(s Service) error {
	if err := s.validate(); err != nil {
		return err
	}
	known := c.services[s.Name]
	if known == nil {
		known = &service{}
		c.services[s.Name] = known
	}
	for _, g := range known.groups {
		g.promise(c.options.Growth, -1)
	}
	known.Service, known.declared = s, true
	for _, g := range known.groups {
		g.promise(c.options.Growth, 1)
	}
	return nil
}

// Withdraw reverts Declare. Instances of the service that run stay where they are.
func (c *Cluster) Withdraw(name string) {
	s := c.services[name]
	if s == nil {
		return
	}
	for _, g := range s.groups {
		g.promise(c.options.Growth, -1)
	}
	s.Service, s.declared = Service{Name: name}, false
	if len(s.groups) == 0 {
		delete(c.services, name)
	}
}

// Bind records an instance that already runs on a node, and picks devices for it. Resources and devices must suffice;
// the rules of spine, density and uplink are not checked.
func (c *Cluster) Bind(in Instance, node string) (Assignment, error) {
	g, err := c.admit(&in)
	if err != nil {
		return Assignment{}, err
	}
	defer c.forget(g)
	h := c.hosts[node]
	if h == nil {
		return Assignment{}, fmt.Errorf("instance %q: node %q is not in the cluster", in.Name, node)
	}
	if !h.fits(&in) {
		return Assignment{}, fmt.Errorf("instance %q: %w", in.Name, c.missOf(h, &in, g))
	}
	return c.assign(h, g, &in), nil
}

// Adopt records an instance that already runs on a node, even if resources or devices do not suffice. Free amounts of the
// node are then negative, and it accepts no further instance. Schedulers use Adopt for what they cannot change.
func (c *Cluster) Adopt(in Instance, node string) error {
	g, err := c.admit(&in)
	if err != nil {
		return err
	}
	defer c.forget(g)
	h := c.hosts[node]
	if h == nil {
		return fmt.Errorf("instance %q: node %q is not in the cluster", in.Name, node)
	}
	a := h.pickAny(&in)
	c.record(h, g, a)
	return nil
}

// Restore records an instance that runs with known devices, for example one that another Cluster placed.
func (c *Cluster) Restore(a Assignment) error {
	g, err := c.admit(&a.Instance)
	if err != nil {
		return err
	}
	defer c.forget(g)
	h := c.hosts[a.Node]
	if h == nil {
		return fmt.Errorf("instance %q: node %q is not in the cluster", a.Name, a.Node)
	}
	if err := h.idleDevices(&a); err != nil {
		return fmt.Errorf("instance %q on node %q: %w", a.Name, a.Node, err)
	}
	c.record(h, g, a)
	return nil
}

// Release removes an instance.
func (c *Cluster) Release(name string) error {
	r := c.instances[name]
	if r == nil {
		return fmt.Errorf("instance %q does not run", name)
	}
	c.release(r)
	return nil
}

// Lookup returns the assignment of an instance.
func (c *Cluster) Lookup(name string) (Assignment, bool) {
	if r := c.instances[name]; r != nil {
		return r.Assignment, true
	}
	return Assignment{}, false
}

// Len returns the number of running instances.
func (c *Cluster) Len() int { return len(c.instances) }

// admit checks an instance before a node is known, and returns its group.
func (c *Cluster) admit(in *Instance) (*group, error) {
	if err := in.validate(); err != nil {
		return nil, err
	}
	if r := c.instances[in.Name]; r != nil {
		return nil, fmt.Errorf("instance %q runs already, on node %q", in.Name, r.Node)
	}
	s, err := c.serviceOf(in)
	if err != nil {
		return nil, err
	}
	c.services[in.Service] = s
	return s.group(in.Group), nil
}

// serviceOf returns the service of an instance, a new one if it is unknown, and checks the group.
func (c *Cluster) serviceOf(in *Instance) (*service, error) {
	s := c.services[in.Service]
	if s == nil {
		s = &service{Service: Service{Name: in.Service}}
	}
	if groups := max(s.Groups, 1); in.Group >= groups {
		return nil, fmt.Errorf("instance %q: group must be below %d, the number of groups of service %q, got %d", in.Name, groups, in.Service, in.Group)
	}
	return s, nil
}

// forget drops a group without instances, and its service if it was not declared and has no other group.
func (c *Cluster) forget(g *group) {
	if g.count > 0 {
		return
	}
	s := g.service
	s.groups = slices.DeleteFunc(s.groups, func(other *group) bool { return other == g })
	if len(s.groups) == 0 && !s.declared && c.services[s.Name] == s {
		delete(c.services, s.Name)
	}
}

// assign picks devices and records the instance.
func (c *Cluster) assign(h *host, g *group, in *Instance) Assignment {
	a := h.pick(in)
	c.record(h, g, a)
	return a
}

func (c *Cluster) record(h *host, g *group, a Assignment) {
	r := &running{Assignment: a, host: h, group: g}
	before := h.unused()
	h.hold(&r.Assignment, g.service)
	c.settle(r, before, 1)
	c.instances[a.Name] = r
}

func (c *Cluster) release(r *running) {
	before := r.host.unused()
	r.host.unhold(&r.Assignment, r.group.service)
	c.settle(r, before, -1)
	delete(c.instances, r.Name)
	c.forget(r.group)
}

// settle updates the indexes after a change of a host, whose free amounts were `before`; step is 1 for a new instance.
func (c *Cluster) settle(r *running, before Demand, step int) {
	l, g := r.host.leaf, r.group
	after := r.host.unused()
	after.subtractDemand(before)
	l.free.addDemand(after)
	l.spine.free.addDemand(after)
	l.uplink += step * r.NIC
	l.bounds.stale = true
	g.promise(c.options.Growth, -1)
	if asked := DemandOf([]Instance{r.Instance}); step > 0 {
		g.used.addDemand(asked)
	} else {
		g.used.subtractDemand(asked)
	}
	g.move(l, step)
	g.promise(c.options.Growth, 1)
}
