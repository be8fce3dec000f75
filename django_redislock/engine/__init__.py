"""Getting locks, holding them and giving them back: what Lock, pools, decorators and commands are made of."""
