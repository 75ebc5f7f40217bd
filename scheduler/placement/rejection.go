package placement

import (
	"fmt"
	"strings"
)

// Rule is a reason why a node rejects an instance.
type Rule uint8

// Rules, in the order in which they are checked.
const (
	RuleSpine Rule = iota
	RuleGroup
	RuleCores
	RuleMemory
	RuleDisk
	RuleGPU
	RuleNIC
	RuleDensity
	RuleUplink
	RuleCount
)

var ruleNames = [...]string{
	"spine", "group", "cores", "memory", "disk", "gpu", "nic", "density", "uplink",
}

func (r Rule) String() string { return ruleNames[r] }

// Shortage is one rule that a node does not meet. Needs and Has count millicores, MiB, GPUs, percent of a NIC or
// instances; rules about spines use neither.
type Shortage struct {
	Rule       Rule
	Needs, Has int64
}

// String writes no percent sign: schedulers use the text as a format of events.
func (s Shortage) String() string {
	switch s.Rule {
	case RuleSpine:
		return "is not below the spine of the service"
	case RuleGroup:
		return "is below a spine or zone of another group"
	case RuleCores:
		return fmt.Sprintf("has %g cores free, needs %g", float64(s.Has)/1000, float64(s.Needs)/1000)
	case RuleMemory, RuleDisk:
		return fmt.Sprintf("has %d MiB of %s free, needs %d", s.Has, s.Rule, s.Needs)
	case RuleGPU:
		return fmt.Sprintf("has %d GPUs or partitions free, needs %d", s.Has, s.Needs)
	case RuleNIC:
		return fmt.Sprintf("has %d percent of a NIC free, needs %d", s.Has, s.Needs)
	case RuleDensity:
		return fmt.Sprintf("may run %d pods of the service at most, would run %d", s.Has, s.Needs)
	default:
		return fmt.Sprintf("has %d percent of a NIC free on the uplink of its leaf, needs %d", s.Has, s.Needs)
	}
}

// Miss is a node with every rule that it does not meet.
type Miss struct {
	Node      string
	Shortages []Shortage
}

func (m *Miss) Error() string {
	texts := make([]string, len(m.Shortages))
	for i, s := range m.Shortages {
		texts[i] = s.String()
	}
	return fmt.Sprintf("node %q %s", m.Node, strings.Join(texts, ", "))
}

// Rejection says why no node accepts an instance.
type Rejection struct {
	Instance string
	// Nodes counts all nodes; Turned counts, by rule, the nodes that the rule rejected first.
	Nodes  int
	Turned [RuleCount]int
	// Open counts nodes that meet every rule. It is 0 for errors of this package; a scheduler with rules of its own, such
	// as taints, may reject them.
	Open int
	// Nearest is the node with the fewest missed rules, then with the smallest shortage, below the spines that the
	// instance may use, or below any spine if there is none; nil without nodes.
	Nearest *Miss
}

func (r *Rejection) Error() string {
	var text strings.Builder
	fmt.Fprintf(&text, "no node takes instance %q: of %d nodes", r.Instance, r.Nodes)
	rejected := " rejected"
	for rule, count := range r.Turned {
		if count > 0 {
			fmt.Fprintf(&text, ", %d%s by rule %s", count, rejected, Rule(rule))
			rejected = ""
		}
	}
	if r.Open > 0 {
		fmt.Fprintf(&text, ", %d%s by none of these rules", r.Open, rejected)
	}
	if r.Nearest != nil {
		fmt.Fprintf(&text, "; nearest: %s", r.Nearest.Error())
	}
	return text.String()
}

// reject checks every rule on every host below the spines that the instance may use. The hosts of other spines are only
// counted, unless no spine is left.
func (c *Cluster) reject(in *Instance, g *group, only *spine) *Rejection {
	r := &Rejection{Instance: in.Name, Nodes: len(c.hosts)}
	var admitted []*spine
	for _, s := range c.spines {
		if rule, excluded := spineRule(s, g, only); excluded {
			r.Turned[rule] += s.hosts
		} else {
			admitted = append(admitted, s)
		}
	}
	if len(admitted) == 0 {
		admitted, r.Turned = c.spines, [RuleCount]int{}
	}
	var nearest *host
	fewest, smallest := int(RuleCount)+1, 0.0
	var found [RuleCount]Shortage
	for _, s := range admitted {
		for _, l := range s.leaves {
			for _, h := range l.hosts {
				missed := c.shortages(found[:0], h, in, g, only)
				if len(missed) == 0 {
					r.Open++
					continue
				}
				r.Turned[missed[0].Rule]++
				if len(missed) > fewest {
					continue
				}
				if size := shortageSize(missed); len(missed) < fewest || size < smallest {
					nearest, fewest, smallest = h, len(missed), size
				}
			}
		}
	}
	if nearest != nil {
		r.Nearest = &Miss{Node: nearest.Name, Shortages: c.shortages(nil, nearest, in, g, only)}
	}
	return r
}

// spineRule reports whether a spine is excluded for an instance, and by which rule.
func spineRule(s *spine, g *group, only *spine) (rule Rule, excluded bool) {
	home := only
	if home == nil && g.count > 0 {
		home = g.spines[0].spine
	}
	if s == home {
		return 0, false
	}
	if only != nil || home != nil && g.service.Spines == Hard {
		return RuleSpine, true
	}
	return RuleGroup, !g.apart(s)
}

// missOf returns the rules that a host itself does not meet.
func (c *Cluster) missOf(h *host, in *Instance, g *group) *Miss {
	return &Miss{Node: h.Name, Shortages: c.shortages(nil, h, in, g, h.leaf.spine)}
}

// shortageSize adds up shortages relative to the needs.
func shortageSize(missed []Shortage) float64 {
	size := 0.0
	for _, s := range missed {
		if s.Needs > 0 {
			size += float64(s.Needs-s.Has) / float64(s.Needs)
		} else {
			size++
		}
	}
	return size
}

// shortages appends every rule that a host does not meet, in the order of rules.
func (c *Cluster) shortages(missed []Shortage, h *host, in *Instance, g *group, only *spine) []Shortage {
	if rule, excluded := spineRule(h.leaf.spine, g, only); excluded {
		missed = append(missed, Shortage{Rule: rule})
	}
	lack := func(rule Rule, needs, has int64) {
		if has < needs {
			missed = append(missed, Shortage{rule, needs, has})
		}
	}
	lack(RuleCores, in.Cores, h.free.Cores)
	lack(RuleMemory, in.Memory, h.free.Memory)
	lack(RuleDisk, in.Disk, h.free.Disk)
	if in.GPUs > 0 {
		lack(RuleGPU, int64(in.GPUs), int64(h.available(in)))
	}
	if in.NIC > 0 {
		lack(RuleNIC, int64(in.NIC), int64(h.roomiestNIC()))
	}
	if count, limit := h.densityLimit(g.service, in.Density); limit > 0 {
		lack(RuleDensity, int64(count+1), int64(limit))
	}
	if in.NIC > 0 {
		lack(RuleUplink, int64(in.NIC), int64(c.uplinkLimit(h.leaf)-h.leaf.uplink))
	}
	return missed
}
