"""Questions and answers: the only place where strategies, engines, numerics and convergence meet."""
