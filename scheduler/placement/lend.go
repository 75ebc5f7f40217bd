package placement

import (
	"fmt"
	"slices"
)

// Loan is a set of nodes that are available for a window of time, for example training nodes on the day of a promotion.
type Loan struct {
	Name  string
	Nodes []Node
	// Until is the end of the window, in seconds of the caller's clock.
	Until float64
}

// Lend adds the nodes of a loan, all or none.
func (c *Cluster) Lend(loan Loan) error {
	if _, lent := c.loans[loan.Name]; lent {
		return fmt.Errorf("loan %q is lent already", loan.Name)
	}
	for i := range loan.Nodes {
		if err := c.AddNode(loan.Nodes[i]); err != nil {
			for j := range i {
				c.detach(c.hosts[loan.Nodes[j].Name])
			}
			return fmt.Errorf("loan %q: %w", loan.Name, err)
		}
	}
	c.loans[loan.Name] = loan
	return nil
}

// Return removes the nodes of every loan whose window ended by now, and returns the instances that ran on them, by name.
// Nothing of them remains in the cluster.
func (c *Cluster) Return(now float64) []Instance {
	var gone []Instance
	for name, loan := range c.loans {
		if loan.Until > now {
			continue
		}
		for i := range loan.Nodes {
			// The node may have been removed in the meantime.
			instances, _ := c.RemoveNode(loan.Nodes[i].Name)
			gone = append(gone, instances...)
		}
		delete(c.loans, name)
	}
	slices.SortFunc(gone, compareInstances)
	return gone
}
