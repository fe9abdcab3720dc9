//! Striped volumes over members in memory.

mod arithmetic;
mod histories;
mod member;
mod together;
