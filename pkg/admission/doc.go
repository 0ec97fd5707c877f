// Package admission answers the API server: it reads AdmissionReview requests,
// lets package inject decide, and writes the answer. It changes nothing in the
// cluster, so a dry run needs no special care.
//
// A CronJob is refused when one of its values cannot be accepted. A pod is refused
// only when asking again may help (its Job cannot be read just now) or when no guard
// fits it at all; what must not run for another reason is admitted with a guard that
// says so.
//
// A Job is looked at only when the windows engine creates it: its account may make what
// a CronJob makes, and nothing else.
package admission
