"""Local training at a site: recipes, objectives, plans, trainers, and the requests that train, evaluate and measure."""
