// Package models owns the directory in which models lie: it publishes them,
// and says which one serves and which one served before.
//
//	DIR/20261130T120000-ab12cd/  a model: manifest.json, p50.txt, p95.txt; never changed
//	DIR/active.json              {"active": ID, "previous": ID}
//	DIR/.lock                    locked (flock) by whoever changes the directory
//	DIR/.tmp-*                   what is being written; removed by the next to hold the lock
//
// Whatever appears under its name is whole and on disk: it is written beside,
// synced and renamed. So a process may be killed at any moment, and readers,
// which take no lock, see the state before or the state after. Other programs
// that write to the directory have to do the same, lock included.
//
// What makes a model valid belongs to package trees; which model deserves to
// serve, to whoever calls Activate.
package models
