//! The real node, in this process: what volumes and clients see of each other through it.

mod activity;
mod between;
mod client;
mod control;
mod damage;
mod dashboards;
mod deaths;
mod errors;
mod file_slos;
mod filesystems;
mod hostile;
mod journals;
mod lineage;
mod metrics;
mod moves;
mod native;
mod series;
mod slo;
mod stop;
mod streams;
mod stripes;
mod support;
mod tls;
mod tokens;
mod volume_files;
mod volumes;
