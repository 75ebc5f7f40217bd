package testplane

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// StartScheduler starts rowmill-scheduler with a configuration file, in which KUBECONFIG stands for the path of the
// plane's kubeconfig.
func (p *Plane) StartScheduler(name, configuration string) (*Process, error) {
	path := filepath.Join(p.options.Folder, name+".yaml")
	text := strings.ReplaceAll(configuration, "KUBECONFIG", p.Kubeconfig)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return nil, err
	}
	// Level 3 logs each attempt to place a pod.
	arguments := []string{"--config=" + path, "--secure-port=0", "--v=3"}
	if gates := p.gates(); gates != "" {
		arguments = append(arguments, "--feature-gates="+gates)
	}
	return p.start("rowmill-scheduler", name, arguments...)
}

var attempt = regexp.MustCompile(`"Attempting to schedule pod" pod="([^"]+)"`)

// Attempts reads the log of a scheduler: the pods that it tried to place, as namespace/name, in this order.
func (p *Process) Attempts() ([]string, error) {
	file, err := os.Open(p.Log)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var pods []string
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		if match := attempt.FindStringSubmatch(lines.Text()); match != nil {
			pods = append(pods, match[1])
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read %s: %w", p.Log, err)
	}
	return pods, nil
}
