package window

import (
	"sync"
	"time"
)

// Zone is where the schedule's civil times are those of; nil when nobody says which zone.
func (s Schedule) Zone() *time.Location { return s.zone }

// mostZones bounds those that are remembered: there are about six hundred names, but some can
// be spelled in many ways.
const mostZones = 1000

// zonesRead are those already read: to read one takes far longer than all else about a schedule.
var zonesRead = struct {
	sync.Mutex
	known map[string]*time.Location
}{known: map[string]*time.Location{}}

// loadZone is time.LoadLocation, once for each name.
func loadZone(name string) (*time.Location, error) {
	zonesRead.Lock()
	defer zonesRead.Unlock()
	if zone, ok := zonesRead.known[name]; ok {
		return zone, nil
	}
	zone, err := time.LoadLocation(name)
	if err == nil && len(zonesRead.known) < mostZones {
		zonesRead.known[name] = zone
	}
	return zone, err
}
