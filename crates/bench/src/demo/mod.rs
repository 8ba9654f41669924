//! The published demonstrations of partitioned servers and of parallel directory operations, repeated at the size that is
//! asked for: which experiments there are ([`Plan`]), in which order they run ([`run()`]), what came out as rows of a CSV file
//! ([`Record`]) and as one page with plots ([`page()`]).
//!
//! Each experiment measures some configurations of the servers, of which the first is the baseline, on the same loads,
//! in turn and several times over. What starts servers and clients is a [`Stage`], which is not here.

mod beside;
mod charts;
mod kind;
mod load;
mod machine;
mod page;
mod plan;
mod plot;
mod rows;
mod run;
mod size;

pub use charts::summary;
pub use kind::{Demo, Kind};
pub use load::{FileLoad, Load, Make};
pub use machine::machine;
pub use page::page;
pub use plan::{Experiment, Plan, Room, Setting};
pub use rows::{Directory, Record, Row, Sample};
pub use run::{Stage, Word, run};
pub use size::{Crowd, SIZES, Size};
