//! Repeats published demonstrations of partitioned servers, of parallel directory operations, and
//! of a name space over several metadata targets, at a chosen size. [`Plan`] has the experiments,
//! [`run()`] executes them, [`Record`] holds the results as rows of a CSV file, and [`page()`]
//! makes a page with plots.
//!
//! An experiment measures several configurations of the servers, of which the first is the
//! baseline, under the same loads, in turn and repeatedly. A [`Stage`], implemented by the caller,
//! starts servers and clients.

mod charts;
mod kind;
mod load;
mod machine;
mod page;
mod plan;
mod plot;
mod published;
mod published_rates;
mod rows;
mod run;
mod size;

pub use charts::summary;
pub use kind::{Demo, ExperimentKind};
pub use load::{CreateMethod, DemoLoad, FileLoad};
pub use machine::machine;
pub use page::page;
pub use plan::{Configuration, Experiment, MDSS_MAX, Plan, Resources};
pub use rows::{Directory, Record, Row, Sample};
pub use run::{Event, Stage, run};
pub use size::{ClientThreads, SIZES, Size};
