package window

import "time"

// Zone is where the schedule's civil times are those of; nil when nobody says which zone.
func (s Schedule) Zone() *time.Location { return s.zone }
