package plugin

import "rowmill.io/scheduler/placement"

// reasons are the texts with which a node is rejected, by rule. Events count nodes with equal texts. Rules without a text
// are enforced by plugins of Kubernetes.
var reasons = [placement.RuleCount]string{
	placement.RuleSpine:   "node(s) below another spine than the service (rule spine)",
	placement.RuleGroup:   "node(s) below a spine or zone of another group of the service (rule group)",
	placement.RuleNIC:     "node(s) without the requested share of one NIC (rule nic)",
	placement.RuleDensity: "node(s) with as many pods of the service as density allows (rule density)",
	placement.RuleUplink:  "node(s) below a leaf with a used up uplink (rule uplink)",
}

// preemptible reports whether removing other pods may make a node meet a rule.
func preemptible(rule placement.Rule) bool {
	return rule != placement.RuleSpine && rule != placement.RuleGroup
}
