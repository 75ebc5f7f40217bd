package placement

// bounds are the largest free amounts of any host below a leaf, each resource by itself. If an instance exceeds one, no
// host below the leaf fits it, so the search skips the leaf without looking at its hosts. After a change that may lower
// the bounds, the next read computes them again.
type bounds struct {
	Resources
	gpus, slices, nic int
	stale             bool
}

func (b *bounds) raise(h *host) {
	b.Cores = max(b.Cores, h.free.Cores)
	b.Memory = max(b.Memory, h.free.Memory)
	b.Disk = max(b.Disk, h.free.Disk)
	b.gpus = max(b.gpus, h.idle)
	b.slices = max(b.slices, h.partible)
	b.nic = max(b.nic, h.roomiestNIC())
}

// admits reports whether a host below the leaf may fit an instance.
func (l *leaf) admits(in *Instance) bool {
	if l.bounds.stale {
		l.bounds = bounds{}
		for _, h := range l.hosts {
			l.bounds.raise(h)
		}
	}
	if !l.bounds.holds(in.Resources) || l.bounds.nic < in.NIC {
		return false
	}
	if in.Profile == "" {
		return l.bounds.gpus >= in.GPUs
	}
	return l.bounds.slices > 0
}
