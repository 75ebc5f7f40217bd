package testplane

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// Process is a running program.
type Process struct {
	// Log is the file with its output.
	Log string

	command *exec.Cmd
	ended   chan struct{}
}

func startProcess(program, log string, arguments ...string) (*Process, error) {
	out, err := os.Create(log)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	p := &Process{Log: log, command: exec.Command(program, arguments...), ended: make(chan struct{})}
	p.command.Stdout, p.command.Stderr = out, out
	if err := p.command.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", program, err)
	}
	go func() {
		// The state is in command.ProcessState; a program that was killed on purpose is no error.
		_ = p.command.Wait()
		close(p.ended)
	}()
	return p, nil
}

// Running reports whether the process has not ended.
func (p *Process) Running() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// Kill ends the process at once, as a crash would.
func (p *Process) Kill() error {
	return p.end(syscall.SIGKILL)
}

// Stop asks the process to end and waits; it is killed if it does not end in time.
func (p *Process) Stop() error {
	if err := p.end(syscall.SIGTERM); err == nil {
		return nil
	}
	return errors.Join(fmt.Errorf("%s did not end within %v of SIGTERM; its log is %s", p.command.Path, startLimit, p.Log), p.Kill())
}

func (p *Process) end(signal syscall.Signal) error {
	if !p.Running() {
		return nil
	}
	if err := p.command.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-p.ended:
		return nil
	case <-time.After(startLimit):
		return fmt.Errorf("%s did not end within %v of signal %v", p.command.Path, startLimit, signal)
	}
}
