package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/kvlend/kvlend/internal/doctor"
	"github.com/kvlend/kvlend/nvlink/topology"
)

// switched is a server of three GPUs: two at a switch, one with a slot only.
func switched() *topology.Inventory {
	links := []topology.NVLink{{Active: true, Peer: topology.PeerSwitch, BytesPerSec: 25e9}, {Index: 1, Active: true, Peer: topology.PeerSwitch, BytesPerSec: 25e9}}
	inv := &topology.Inventory{GPUs: []topology.GPU{
		{Index: 0, NVLinks: links, PCIe: topology.PCIe{Gen: 4, Width: 16}}, {Index: 1, NVLinks: links}, {Index: 2, PCIe: topology.PCIe{Gen: 4, Width: 16}}, {Index: 3, Fault: "gone"},
	}}
	inv.Pairs = topology.Connect(inv.GPUs, func(from, to int) (topology.P2P, string) {
		if from == 2 {
			return topology.P2P{Read: "not supported"}, "SYS"
		}
		return topology.P2P{}, "SYS"
	})
	return inv
}

func sample() *doctor.Report {
	return &doctor.Report{Problems: 1, Warnings: 2, Inventory: switched(), Sections: []doctor.Section{
		{Name: "kernel", Findings: []doctor.Finding{{Level: doctor.OK, What: "pidfd", Found: "fine"}}},
		{Name: "limits", Findings: []doctor.Finding{{Level: doctor.Problem, What: "locked memory", Found: strings.Repeat("long words ", 30), Hint: "ulimit -l"}}},
	}}
}

func TestDoctorText(t *testing.T) {
	text := doctorText(sample(), false)
	for _, want := range []string{"pidfd", "PROBLEM", "→ ulimit -l", "1 problem, 2 warnings", "NV2 S 50 GB/s", "PCIe SYS 31.5 GB/s", "host SYS 31.5 GB/s", "?"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
	for line := range strings.Lines(text) {
		if n := len([]rune(line)); n > foundWidth+40 {
			t.Errorf("a line has %d letters: %s", n, line)
		}
	}
	brief := doctorText(sample(), true)
	for _, not := range []string{"pidfd", "kernel", "NV2"} {
		if strings.Contains(brief, not) {
			t.Errorf("--brief shows %q:\n%s", not, brief)
		}
	}
}

func TestDoctorCode(t *testing.T) {
	var out bytes.Buffer
	err := showDoctor(&out, sample(), true, false)
	var code *codeError
	if !errors.As(err, &code) || code.code != exitRefused {
		t.Errorf("problems: %v", err)
	}
	var back doctor.Report
	if err := json.Unmarshal(out.Bytes(), &back); err != nil || len(back.Sections) != 2 || len(back.Inventory.Pairs) != 6 {
		t.Errorf("%v: %+v", err, back)
	}
	if err := showDoctor(&out, &doctor.Report{OK: true, Warnings: 3}, false, false); err != nil {
		t.Errorf("warnings: %v", err)
	}
}
