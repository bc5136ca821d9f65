package predictor

// Regime is the load an engine is under when a request is sent to it.
// Predictions are calibrated and judged apart by it.
type Regime uint8

// The regimes, from lightest to heaviest.
const (
	Idle   Regime = iota // nothing decodes and no prompt is pending
	Busy                 // sequences decode, no prompt is pending
	Queued               // prompts are pending ahead of this request
	KVFull               // the cache or the sequence slots are full: somebody must end first
	Regimes
)

// String returns the regime's name as metrics and files spell it.
func (r Regime) String() string {
	return [...]string{"idle", "busy", "queued", "kv_full", "all"}[min(r, Regimes)]
}
