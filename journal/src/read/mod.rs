//! Reading: the log of an open journal, and the files of one without a daemon.

pub(crate) mod catalog;
pub(crate) mod listing;
pub(crate) mod offline;
pub(crate) mod reader;
pub(crate) mod segment_reader;
pub(crate) mod window;
